//! Reaching a repository's git server: fetching a commit into a copy, or asking where a ref stands.
//! Both are done by a process of their own, with the repository's credential, within a bounded
//! time.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use delta_wire::api::{SecretKind, SecretValue};
use delta_wire::planning::{FETCH_WORKER, FetchAnswer, FetchOrder};

use super::Registered;
use super::mirrors::{self, Mirrors};
use super::worker::{Broken, Workers};
use crate::keyed_limit::KeyedLimit;

/// How long a fetch may take: a large repository over a slow line. Of the time that a run has for
/// its plan it leaves what the planner takes; git itself gives up on who says nothing for a minute.
const FETCHING: Duration = Duration::from_secs(14 * 60);
/// How long a look at a ref may take, and its wait for a turn: somebody waits for it.
const LOOKING: Duration = Duration::from_secs(15);
const WAITING: Duration = Duration::from_secs(5);
/// Looks at a time, and at one host.
const LOOKS: usize = 16;
const AT_A_HOST: usize = 4;

pub struct Fetching {
    pub workers: Workers,
    pub mirrors: Mirrors,
    looks: KeyedLimit<String>,
    /// How long a look waits for its turn.
    waiting: Duration,
}

impl Fetching {
    pub fn new(program: PathBuf, mirrors: PathBuf) -> Fetching {
        Fetching {
            workers: Workers { program, mirrors },
            mirrors: Mirrors::default(),
            looks: KeyedLimit::new(AT_A_HOST, LOOKS),
            waiting: WAITING,
        }
    }

    /// Fetches into the copy when it is its turn, and notes while it does.
    pub async fn fetch(
        &self,
        registered: &Registered,
        order: FetchOrder,
        working: &AtomicBool,
    ) -> FetchAnswer {
        if let Some(refused) = unlent(registered, &order) {
            return refused;
        }
        let mirror = Path::new(&order.mirror);
        let host = delta_forge::host_of(&order.url);
        let _turn = self.mirrors.turn(mirror, &host).await;
        working.store(true, Ordering::Relaxed);
        let answered = self.workers.call(FETCH_WORKER, &order, FETCHING).await;
        working.store(false, Ordering::Relaxed);
        if matches!(answered, Ok(FetchAnswer::Fetched { .. })) {
            mirrors::used(mirror);
        }
        answered.unwrap_or_else(|broken| {
            FetchAnswer::Failed(broken.reported(FETCH_WORKER, order.credential.as_deref()))
        })
    }

    /// Which commit a ref is now.
    pub async fn look(
        &self,
        registered: &Registered,
        credential: Option<SecretValue>,
        git_ref: &str,
    ) -> FetchAnswer {
        let order = FetchOrder {
            mirror: String::new(),
            url: registered.row.clone_url.to_string(),
            git_ref: Some(git_ref.to_owned()),
            commit: None,
            base: None,
            credential: credential.map(as_text),
        };
        if let Some(refused) = unlent(registered, &order) {
            return refused;
        }
        let host = delta_forge::host_of(&order.url);
        let Ok(_place) = tokio::time::timeout(self.waiting, self.looks.take(host.clone())).await
        else {
            let why = format!("this server is busy: too many wait for {host}; try again");
            return FetchAnswer::Failed(why);
        };
        match self.workers.call(FETCH_WORKER, &order, LOOKING).await {
            Ok(answer) => answer,
            Err(Broken::Time(_)) => FetchAnswer::Failed("the git server does not answer".into()),
            Err(broken) => {
                let lent = order.credential.as_deref();
                FetchAnswer::Failed(broken.reported(FETCH_WORKER, lent))
            }
        }
    }
}

/// What is said where a credential is named and not set.
fn unlent(registered: &Registered, order: &FetchOrder) -> Option<FetchAnswer> {
    let name = registered.credential.as_ref()?;
    let missing = || FetchAnswer::Failed(format!("the secret {name} is not set"));
    order.credential.is_none().then(missing)
}

/// A credential as the text of a secret has it.
pub fn as_text(value: SecretValue) -> String {
    match (value.kind, value.username, value.known_hosts) {
        (SecretKind::SshKey, _, Some(hosts)) => format!("{}\n{hosts}", value.value.trim_end()),
        (_, Some(user), _) => format!("{user}\n{}", value.value),
        _ => value.value,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use delta_core::{Settings, Span};

    use super::*;
    use crate::forges::trigger::PLANNING;

    #[tokio::test]
    async fn a_look_whose_turn_does_not_come_says_so() {
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("git");
        std::fs::write(&program, "#!/bin/sh\nexec sleep 600\n").unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let about = r#"{"forge":"gitea","forks":"run","supersede":true}"#;
        let registered = Registered::in_tests("https://slow.example/team/app.git", about);
        let mut fetching = Fetching::new(program, place.path().join("mirrors"));
        fetching.waiting = Duration::from_millis(50);
        let fetching = Arc::new(fetching);
        let mut looks = tokio::task::JoinSet::new();
        for _ in 0..=AT_A_HOST {
            let (fetching, registered) = (fetching.clone(), registered.clone());
            looks.spawn(async move { fetching.look(&registered, None, "refs/heads/main").await });
        }
        let first = looks.join_next().await.unwrap().unwrap();
        let busy = "this server is busy: too many wait for slow.example; try again";
        assert_eq!(first, FetchAnswer::Failed(busy.into()));
        looks.shutdown().await;
    }

    #[test]
    fn a_fetch_has_all_the_time_of_planning_but_the_planners() {
        let planner = Settings::recommended().planning_timeout;
        let fetching = Span(i64::try_from(FETCHING.as_millis()).unwrap());
        assert_eq!(fetching.plus(planner), PLANNING);
    }
}
