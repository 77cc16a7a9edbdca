//! What other servers have set about queues, read again and again: a server that is alone sets all
//! of it itself.

use std::time::Duration;

use super::every::Duty;
use crate::app::App;
use crate::not_done::NotDone;

/// How often servers beside others look at what is set about queues: a pause is asked for by
/// people, who see within seconds that it counts everywhere.
const EVERY: Duration = Duration::from_secs(2);

/// See what others have set about queues.
pub struct ReadQueues(pub App);

impl Duty for ReadQueues {
    const NAME: &'static str = "queues";
    type Counts = usize;
    type Error = NotDone;

    fn interval(&self) -> Duration {
        EVERY
    }

    /// One pass; returns about how many queues something is set.
    async fn run_once(&mut self) -> Result<usize, NotDone> {
        let app = self.0.clone();
        self.0
            .read(move |reader| {
                app.queues.read(reader, &app.writer)?;
                Ok(app.queues.all().len())
            })
            .await
    }
}
