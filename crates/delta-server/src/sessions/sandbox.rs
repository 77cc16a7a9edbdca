//! The least sandbox of a pool: an agent that confines its jobs less is not let in.
//!
//! Whether an agent does what it says is not known here; what it says it cannot do is.

use std::collections::BTreeMap;

use delta_core::Text;
use tonic::Status;

use super::capabilities::About;

/// How jobs are confined, from the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sandbox {
    Open,
    Host,
    Strict,
}

impl Sandbox {
    pub const ALL: [Sandbox; 3] = [Sandbox::Open, Sandbox::Host, Sandbox::Strict];

    /// The agent's word for it.
    pub fn name(self) -> &'static str {
        match self {
            Sandbox::Open => "open",
            Sandbox::Host => "host",
            Sandbox::Strict => "strict",
        }
    }

    pub fn from_name(name: &str) -> Option<Sandbox> {
        Sandbox::ALL.into_iter().find(|it| it.name() == name)
    }
}

/// The least sandbox of each pool that has one.
pub type PoolSandboxes = BTreeMap<Text, Sandbox>;

/// Refuses an agent that confines its jobs less than its pool asks for.
pub fn check(pools: &PoolSandboxes, about: &About) -> Result<(), Status> {
    let Some(least) = pools.get(about.pool.as_str()) else {
        return Ok(());
    };
    let said = about.enforced.iter();
    let own = said.filter_map(|word| Sandbox::from_name(word)).next();
    if own.is_some_and(|own| own >= *least) {
        return Ok(());
    }
    let words = format!(
        "the pool {} is for agents with --sandbox {}; this one has {}",
        about.pool,
        least.name(),
        own.map_or("none", Sandbox::name),
    );
    Err(Status::failed_precondition(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_confines_less_than_its_pool_asks_for_stays_out() {
        let pools = PoolSandboxes::from([("forks".into(), Sandbox::Strict)]);
        let about = |pool: &str, enforced: &[&str]| About {
            pool: pool.to_owned(),
            enforced: enforced.iter().map(|it| (*it).to_owned()).collect(),
            ..About::default()
        };
        for (pool, enforced, fits) in [
            ("forks", &["strict", "landlock:7"][..], true),
            ("forks", &["host", "untrusted:strict"], false),
            ("forks", &[], false),
            ("default", &["open"], true),
        ] {
            let checked = check(&pools, &about(pool, enforced));
            assert_eq!(checked.is_ok(), fits, "{pool} {enforced:?}");
        }
    }
}
