//! Hearing that another writer queued attempts: one connection and one thread, for as long as the
//! store lives.
//!
//! A notification is a hint. Whatever may have been missed while the connection was away counts as
//! heard when it is back, and the sweep looks anyway.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_postgres::{AsyncMessage, Client};

use super::connect::{Driver, Planning, Target, bounded};
use super::error::Trouble;
use super::sql::CHANNEL;
use crate::{WakeFn, Wakeups};

/// Notifications not yet looked at. One is as good as many: more are dropped.
const WAITING: usize = 16;

/// Pauses between tries to reach the database, doubled from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The writer's end of it.
#[derive(Default)]
pub(super) struct Listener {
    ear: Arc<Ear>,
    /// The thread ends when this is dropped.
    stop: Option<watch::Sender<()>>,
}

/// Counts notifications of others: odd while the connection is up, even while it is away.
#[derive(Default)]
struct Ear(AtomicU64);

impl Listener {
    /// The count so far; `None` while nothing can be heard.
    pub(super) fn heard(&self) -> Option<u64> {
        let count = self.ear.0.load(Ordering::Acquire);
        (count % 2 == 1).then_some(count)
    }

    /// Where to hand the function; the thread starts then. A second call replaces the first.
    pub(super) fn wakeups(&mut self, target: Target, name: String) -> Wakeups {
        let (stop, stopped) = watch::channel(());
        self.stop = Some(stop);
        let ear = self.ear.clone();
        Box::new(move |wake| {
            let listen = move || run(&target, &name, &ear, &wake, stopped);
            let thread = std::thread::Builder::new().name("store-listen".into());
            if let Err(error) = thread.spawn(listen) {
                tracing::warn!(%error, "other servers are not heard, only their work is swept");
            }
        })
    }
}

fn run(target: &Target, name: &str, ear: &Ear, wake: &WakeFn, mut stopped: watch::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let Ok(runtime) = runtime else {
        return;
    };
    runtime.block_on(async {
        tokio::select! {
            () = listen(target, name, ear, wake) => {}
            // Nothing is ever sent: this ends when the store does.
            _ = stopped.changed() => ear.away(),
        }
    });
    runtime.shutdown_background();
}

async fn listen(target: &Target, name: &str, ear: &Ear, wake: &WakeFn) {
    let mut pause = FIRST_PAUSE;
    loop {
        match connect(target).await {
            Ok((_client, _driver, mut messages)) => {
                pause = FIRST_PAUSE;
                ear.back();
                wake();
                while let Some(message) = messages.recv().await {
                    if is_from_another(&message, name) {
                        ear.hear();
                        wake();
                    }
                }
                ear.away();
            }
            Err(trouble) => tracing::debug!(?trouble, "cannot listen"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn connect(
    target: &Target,
) -> Result<(Client, Driver, mpsc::Receiver<AsyncMessage>), Trouble> {
    let (sender, messages) = mpsc::channel(WAITING);
    let (client, driver) = target.connect(Planning::Each, Some(sender)).await?;
    bounded(client.batch_execute(&format!("LISTEN {CHANNEL}"))).await?;
    Ok((client, driver, messages))
}

fn is_from_another(message: &AsyncMessage, name: &str) -> bool {
    matches!(message, AsyncMessage::Notification(said) if said.payload() != name)
}

impl Ear {
    fn hear(&self) {
        self.0.fetch_add(2, Ordering::AcqRel);
    }

    fn back(&self) {
        let up = |count| Some(if count % 2 == 0 { count + 1 } else { count + 2 });
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, up);
    }

    fn away(&self) {
        let down = |count| (count % 2 == 1).then_some(count + 1);
        // An error says that it was away already.
        let _ = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, down);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_counts_as_known_while_the_connection_is_away() {
        let listener = Listener::default();
        assert_eq!(listener.heard(), None);
        listener.ear.back();
        let first = listener.heard();
        assert!(first.is_some());
        listener.ear.hear();
        assert_ne!(listener.heard(), first);
        listener.ear.away();
        assert_eq!(listener.heard(), None);
        listener.ear.away();
        assert_eq!(listener.heard(), None);
        listener.ear.back();
        assert!(listener.heard() > first);
    }
}
