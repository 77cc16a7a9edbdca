//! How the runner pools of an agent are, as it says: for people, and so that one that does not come
//! up is offered no calls.
//!
//! Everything is bounded here: an agent is not trusted to be brief (EP-4).

use delta_wire::agent::proto;
use serde::{Deserialize, Serialize};

/// Pools that are looked at: twice what an honest agent has.
const MAX_POOLS: usize = 64;
/// Characters of a name.
const MAX_NAME: usize = 100;
/// Characters of an error: a line on a terminal, and a half.
const MAX_ERROR: usize = 200;

/// One pool, as the agent last said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunnerPool {
    pub name: String,
    pub up: u32,
    pub wanted: u32,
    pub in_flight: u32,
    pub room: u32,
    pub waiting: u32,
    pub restarts: u64,
    pub last_error: String,
}

/// What a heartbeat says of them; nothing when it says nothing.
pub fn heard(said: &[proto::RunnerPool]) -> Option<Vec<RunnerPool>> {
    let pools = said.iter().take(MAX_POOLS).map(|it| RunnerPool {
        name: words(&it.name, MAX_NAME),
        up: it.up,
        wanted: it.wanted,
        in_flight: it.in_flight,
        room: it.room,
        waiting: it.waiting,
        restarts: it.restarts,
        last_error: words(&it.last_error, MAX_ERROR),
    });
    (!said.is_empty()).then(|| pools.collect())
}

/// Printable and short.
fn words(text: &str, most: usize) -> String {
    let fit = text.chars().filter(|c| !c.is_control());
    fit.take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_says_of_its_pools_is_cut_to_size() {
        // EP-4, D15
        let said = proto::RunnerPool {
            name: "p\u{1b}[31m".repeat(1000),
            last_error: "no\r\nway".repeat(10_000),
            up: u32::MAX,
            restarts: u64::MAX,
            ..Default::default()
        };
        let heard = heard(&vec![said; 10_000]).unwrap();
        assert_eq!(heard.len(), MAX_POOLS);
        assert_eq!(heard[0].name.chars().count(), MAX_NAME);
        assert!(heard[0].last_error.starts_with("nowayno"));
        assert_eq!(heard[0].last_error.len(), MAX_ERROR);
        assert!(!heard[0].name.contains('\u{1b}'));
        assert_eq!(super::heard(&[]), None, "as it was");
    }
}
