//! Six mistakes a server could make, to see that the checkers would notice (the checkers' own
//! test). They live in the simulated server around the core, never in the core.

/// A mistake, seeded on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A message on any old lease is taken for one on the current lease.
    NoFencing,
    /// A lease past its end counts until the sweeper has been by.
    SweeperOnlyExpiry,
    /// Answers go out before the batch is durable.
    AckBeforeCommit,
    /// Subscribers follow one global number that is drawn at the start of a transaction, and so
    /// miss what commits late.
    BigserialReader,
    /// A message on an unacknowledged lease acknowledges it.
    ImplicitAck,
    /// A new lease gets the epoch of the one before.
    EpochReuse,
}

impl Bug {
    pub const ALL: [Bug; 6] = [
        Bug::NoFencing,
        Bug::SweeperOnlyExpiry,
        Bug::AckBeforeCommit,
        Bug::BigserialReader,
        Bug::ImplicitAck,
        Bug::EpochReuse,
    ];

    /// The invariant that catches it.
    pub fn caught_by(self) -> &'static str {
        match self {
            Bug::NoFencing | Bug::SweeperOnlyExpiry => "I2",
            Bug::AckBeforeCommit => "I15",
            Bug::BigserialReader => "I18",
            Bug::ImplicitAck => "I2",
            Bug::EpochReuse => "I4",
        }
    }
}
