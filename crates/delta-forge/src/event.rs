//! What a forge has to say, in our words: the same for every forge.

use crate::names::{Commit, Ref};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The forge tries the address.
    Ping,
    /// A branch or a tag has a new head.
    Push(Push),
    /// A branch or a tag is gone.
    Deleted { git_ref: Ref },
    /// A request was opened, opened again, or has a new head.
    PullRequest(PullRequest),
    /// A request is over.
    Closed { number: u64 },
    /// Something that starts nothing.
    Other { name: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    pub git_ref: Ref,
    /// Where it was before; none for a new one.
    pub before: Option<Commit>,
    /// What the push itself names: for a signed or annotated tag that is the tag, not its commit.
    pub after: Commit,
    pub commit: Commit,
    pub actor: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullRequest {
    pub number: u64,
    pub head: Commit,
    /// The branch it comes from, as its author named it: for people.
    pub head_branch: String,
    /// The branch it wants to go to.
    pub base: Ref,
    pub base_commit: Option<Commit>,
    /// It comes from another repository: from people without rights here. In doubt it does.
    pub fork: bool,
    pub actor: String,
}
