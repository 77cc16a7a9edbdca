//! Results on their way to the server: a few at a time, kept until the server has them, and sent
//! again on the next session where it has not.

use std::collections::VecDeque;
use std::time::Duration;

use delta_wire::agent::proto::TestResult;
use delta_wire::runner::LeaseToken;
use prost::Message as _;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::link::{Link, ResultCursor};

/// Results that are on their way at most, and their bytes.
const WINDOW: usize = 1_024;
const WINDOW_BYTES: usize = 4 * 1024 * 1024;
/// Results handed to the line at once.
const BATCH: usize = 256;
pub struct Sender {
    pub link: Link,
    pub execution: String,
    pub lease: LeaseToken,
    /// The session, while there is one.
    pub line: watch::Receiver<Option<u64>>,
    pub acks: watch::Receiver<ResultCursor>,
    /// The work is over: until then nothing is given up.
    pub over: CancellationToken,
    /// How long a server that is there may take none of them, then.
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

    fn acknowledge(&mut self, received: u64) {
        while self.acked < received && self.sent > 0 {
            let gone = self.results.pop_front();
            self.bytes -= gone.map_or(0, |(_, length)| length);
            self.acked += 1;
            self.sent -= 1;
        }
    }
}

impl Sender {
    /// Sends until there are no more and the server has all of them. How many it did not take; what
    /// comes after that is refused.
    pub async fn send(mut self, mut results: mpsc::Receiver<TestResult>) -> usize {
        let (mut waiting, mut session, mut more) = (Waiting::default(), None, true);
        loop {
            let line = *self.line.borrow_and_update();
            if line != session {
                session = line;
                (waiting.sent, waiting.acked) = (0, 0);
            }
            let ack = *self.acks.borrow_and_update();
            if session == Some(ack.session) {
                waiting.acknowledge(ack.received);
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
                () = sleep(self.patience), if unanswered => {
                    tracing::warn!("the server takes no results");
                    return waiting.results.len();
                }
            }
        }
    }
}
