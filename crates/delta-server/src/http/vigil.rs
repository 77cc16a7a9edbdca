//! Whoever listens for long is judged again now and then: a credential that was revoked or has
//! expired ends a stream within a minute (D14).

use std::time::Duration;

use tokio::time::Instant;

use super::App;
use crate::audit;
use crate::identity::{Principal, Standing};

/// How often: well within the minute. A look is one row, or none while it is remembered.
const EVERY: Duration = Duration::from_secs(5);

pub struct Vigil {
    who: Principal,
    next: Instant,
}

impl Vigil {
    pub fn new(who: Principal) -> Vigil {
        Vigil {
            who,
            next: Instant::now() + EVERY,
        }
    }

    /// When to look again, for those who sleep meanwhile.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Whether the stream must end. Costs nothing between two looks. A store that is away says
    /// nothing about the credential.
    pub async fn is_over(&mut self, app: &App) -> bool {
        if Instant::now() < self.next {
            return false;
        }
        self.next = Instant::now() + EVERY;
        let standing = app.identity.recheck(&self.who, app.writer.now()).await;
        match standing {
            Ok(Standing::Good) | Err(_) => false,
            Ok(ended) => {
                audit::ended(&self.who, ended.why());
                true
            }
        }
    }
}
