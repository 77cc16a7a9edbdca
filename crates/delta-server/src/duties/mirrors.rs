//! Copies of repositories that nobody has used for long, removed.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use super::every::Duty;
use crate::forges::fetching::Fetching;
use crate::forges::mirrors::KEPT;

/// How often they are looked for.
const EVERY: Duration = Duration::from_secs(60 * 60);

pub struct TrimMirrors(pub Arc<Fetching>);

impl Duty for TrimMirrors {
    const NAME: &'static str = "mirrors";
    type Counts = usize;
    type Error = Infallible;

    fn interval(&self) -> Duration {
        EVERY
    }

    /// One pass; returns how many copies were removed.
    async fn run_once(&mut self) -> Result<usize, Infallible> {
        let below = &self.0.workers.mirrors;
        Ok(self.0.mirrors.trim(below, KEPT).await)
    }
}
