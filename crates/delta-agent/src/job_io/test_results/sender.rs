//! Results on their way to the server: a few at a time, kept until the server has them, and sent
//! again on the next session where it has not.

use std::collections::VecDeque;
use std::time::Duration;

use delta_wire::agent::proto::TestResult;
use delta_wire::runner::LeaseToken;
use prost::Message as _;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::connection::{Connection, ResultCursor};

/// Results that are on their way at most, and their bytes.
const WINDOW: usize = 1_024;
const WINDOW_BYTES: usize = 4 * 1024 * 1024;
/// Results handed to the line at once.
const BATCH: usize = 256;

pub struct Sender {
    pub link: Connection,
    pub execution: String,
    pub lease: LeaseToken,
    /// The session, while there is one.
    pub line: watch::Receiver<Option<u64>>,
    pub acks: watch::Receiver<ResultCursor>,
    /// The work is over: until then nothing is given up.
    pub over: CancellationToken,
    /// How long a server that is there may take none of them, then, in all of its sessions.
    pub patience: Duration,
}

/// What is not acknowledged, oldest first.
#[derive(Default)]
struct Waiting {
    results: VecDeque<(TestResult, usize)>,
    bytes: usize,
    /// How many of them were sent on this session, and how many before them it acknowledged.
    sent: usize,
    acked: u64,
}

impl Waiting {
    fn has_room(&self) -> bool {
        self.results.len() < WINDOW && self.bytes < WINDOW_BYTES
    }

    fn push(&mut self, result: TestResult) {
        let length = result.encoded_len();
        self.bytes += length;
        self.results.push_back((result, length));
    }

    /// Whether that was news.
    fn acknowledge(&mut self, received: u64) -> bool {
        let news = self.acked < received && self.sent > 0;
        while self.acked < received && self.sent > 0 {
            let gone = self.results.pop_front();
            self.bytes -= gone.map_or(0, |(_, length)| length);
            self.acked += 1;
            self.sent -= 1;
        }
        news
    }
}

impl Sender {
    /// Sends until there are no more and the server has all of them. How many it did not take; what
    /// comes after that is refused.
    pub async fn send(mut self, mut results: mpsc::Receiver<TestResult>) -> usize {
        let (mut waiting, mut session, mut more) = (Waiting::default(), None, true);
        // A server that takes none ends its sessions: a new one is no reason to wait anew.
        let mut patience = self.patience;
        loop {
            let line = *self.line.borrow_and_update();
            if line != session {
                session = line;
                (waiting.sent, waiting.acked) = (0, 0);
            }
            let ack = *self.acks.borrow_and_update();
            if session == Some(ack.session) && waiting.acknowledge(ack.received) {
                patience = self.patience;
            }
            if !more && waiting.results.is_empty() {
                return 0;
            }
            if session.is_some() && waiting.sent < waiting.results.len() {
                let unsent = waiting.results.range(waiting.sent..).take(BATCH);
                let unsent: Vec<TestResult> = unsent.map(|(result, _)| result.clone()).collect();
                waiting.sent += unsent.len();
                self.link.send_results(&self.execution, &self.lease, unsent);
                continue;
            }
            let over = self.over.is_cancelled();
            let unanswered = over && session.is_some() && waiting.sent > 0;
            let began = Instant::now();
            tokio::select! {
                result = results.recv(), if more && waiting.has_room() => match result {
                    Some(result) => {
                        waiting.push(result);
                        while waiting.has_room() && let Ok(result) = results.try_recv() {
                            waiting.push(result);
                        }
                    }
                    None => more = false,
                },
                Ok(()) = self.acks.changed() => {}
                Ok(()) = self.line.changed() => {}
                () = self.over.cancelled(), if !over => {}
                () = sleep(patience), if unanswered => {
                    tracing::warn!("the server takes no results");
                    return waiting.results.len();
                }
            }
            if unanswered {
                patience = patience.saturating_sub(began.elapsed());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(300);
    const SESSION: Duration = Duration::from_millis(60);

    struct Ends {
        line: watch::Sender<Option<u64>>,
        acks: watch::Sender<ResultCursor>,
        sending: tokio::task::JoinHandle<usize>,
    }

    /// Two results on their way, and the work is over.
    fn begin() -> Ends {
        let (line, acks) = (watch::Sender::new(Some(1)), watch::Sender::default());
        let sender = Sender {
            link: Connection::new(1).0,
            execution: "e".to_owned(),
            lease: LeaseToken::from_text(&"a".repeat(40)).unwrap(),
            line: line.subscribe(),
            acks: acks.subscribe(),
            over: CancellationToken::new(),
            patience: PATIENCE,
        };
        sender.over.cancel();
        let (queue, results) = mpsc::channel(2);
        for _ in 0..2 {
            queue.try_send(TestResult::default()).unwrap();
        }
        let sending = tokio::spawn(sender.send(results));
        Ends {
            line,
            acks,
            sending,
        }
    }

    // A57: a store that takes nothing ends every session before the patience does.
    #[tokio::test]
    async fn patience_ends_also_when_the_line_breaks_each_time() {
        let ends = begin();
        for number in 1..200 {
            ends.line.send_replace(Some(number));
            sleep(SESSION).await;
            ends.line.send_replace(None);
            tokio::task::yield_now().await;
            if ends.sending.is_finished() {
                break;
            }
        }
        assert!(ends.sending.is_finished());
        assert_eq!(ends.sending.await.unwrap(), 2);
    }

    #[tokio::test]
    async fn a_server_that_is_away_is_waited_for() {
        let ends = begin();
        ends.line.send_replace(None);
        sleep(PATIENCE * 3).await;
        assert!(!ends.sending.is_finished());
        ends.line.send_replace(Some(2));
        sleep(SESSION).await;
        let (session, received) = (2, 2);
        ends.acks.send_replace(ResultCursor { session, received });
        assert_eq!(ends.sending.await.unwrap(), 0);
    }
}
