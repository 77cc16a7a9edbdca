//! One lane of an agent: ask for a lease, hold it, ask again.

use std::sync::Arc;
use std::time::Duration;

use delta_wire::Seconds;
use delta_wire::runner::Lease;
use tokio::time::{Instant, sleep};

use crate::agent::{Shutdown, SlotContext};
use crate::attempt::Adopted;
use crate::backoff::{Backoff, entropy};
use crate::client::CallError;
use crate::note::Note;
use crate::session::{self, SessionEnd};

/// Waits between tries while the server is away (A35).
const RETRY_BASE: Duration = Duration::from_secs(1);
const RETRY_CAP: Duration = Duration::from_secs(60);

/// The least time between two requests that brought nothing: a server that does not hold requests
/// must not be asked in a tight loop.
const MIN_PAUSE: Duration = Duration::from_secs(1);

/// The server refuses this agent's credential; no later try will do.
pub(crate) struct Refused(pub String);

/// Goes on with what an earlier agent began in this slot. True when there was something.
pub(crate) async fn resume(
    context: &Arc<SlotContext>,
    inherited: Vec<(Note, Adopted)>,
    shutdown: &Shutdown,
) -> Result<bool, Refused> {
    let had_some = !inherited.is_empty();
    for (note, adopted) in inherited {
        // The lease was given to this name, whatever the slot is called now.
        let context = Arc::new(SlotContext {
            runner_id: note.runner_id.clone(),
            ..SlotContext::clone(context)
        });
        let end = session::resume(context, note, adopted, shutdown.clone()).await;
        if let SessionEnd::Refused(why) = end {
            return Err(Refused(why));
        }
    }
    Ok(had_some)
}

/// Works until the shutdown begins and the lease in hand, if any, is over.
pub(crate) async fn work(context: Arc<SlotContext>, mut shutdown: Shutdown) -> Result<(), Refused> {
    let once = context.settings.once;
    let mut backoff = Backoff::new(RETRY_BASE, RETRY_CAP);
    let request = Lease {
        runner_id: context.runner_id.clone(),
        capabilities: context.settings.capabilities.clone(),
        wait_seconds: Seconds::from(context.settings.lease_wait),
    };
    while shutdown.borrow().is_none() {
        let asked_at = Instant::now();
        // A request dropped here un-parks at the server; a grant already on its way is revoked
        // there or expires unacknowledged (A67).
        let asked = tokio::select! {
            biased;
            Ok(_) = shutdown.wait_for(Option::is_some) => break,
            asked = context.client.lease(&request) => asked,
        };
        let pause = match asked {
            Ok(Some(granted)) => {
                backoff.reset();
                match session::hold(Arc::clone(&context), granted, shutdown.clone()).await {
                    SessionEnd::Refused(why) => return Err(Refused(why)),
                    SessionEnd::Settled | SessionEnd::Lost if once => return Ok(()),
                    SessionEnd::Settled | SessionEnd::Lost => Duration::ZERO,
                }
            }
            Ok(None) => {
                backoff.reset();
                let least = MIN_PAUSE.min(context.settings.lease_wait);
                least.saturating_sub(asked_at.elapsed())
            }
            Err(CallError::Unauthorized { message, .. }) => return Err(Refused(message)),
            Err(problem) => {
                let retry_after = match &problem {
                    CallError::Busy { retry_after, .. } => *retry_after,
                    _ => None,
                };
                let pause = backoff.next(retry_after, entropy());
                tracing::warn!(
                    runner_id = context.runner_id, error = %problem, ?pause, "no lease"
                );
                pause
            }
        };
        tokio::select! {
            Ok(_) = shutdown.wait_for(Option::is_some) => break,
            () = sleep(pause) => {}
        }
    }
    Ok(())
}
