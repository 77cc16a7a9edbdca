//! Addresses below this server's own, as people and forges are given them.

use delta_core::RunId;

/// The page of a run: where a status at a forge links to.
pub fn run_page(public_url: &str, run: RunId) -> String {
    format!("{}/runs/{run}", public_url.trim_end_matches('/'))
}
