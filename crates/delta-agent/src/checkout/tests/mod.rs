//! Checkouts from real servers, with real git.

mod faults;
mod hostile;
mod kept;
mod parts;
mod servers;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use delta_git::Credential;
use delta_testkit::git::{GitHttp, Repository};
use delta_wire::Secret;
use delta_wire::job_spec::CheckoutOptions;
use tokio::sync::watch;

use super::{Checkout, CheckoutSettings, Repositories};
use crate::job_io::{Failed, Log, Origin};
use crate::log::progress::Silent;
use crate::work::Identity;

/// Longer than any test here needs, shorter than a person's patience.
const PATIENCE: Duration = Duration::from_secs(60);
/// A token that nothing else contains.
const CANARY: &str = "canary-5d1c0f3b9a";

/// An agent as far as checkouts go, and one checkout to do.
struct Bench {
    folder: tempfile::TempDir,
    repositories: Arc<Repositories>,
    settings: CheckoutSettings,
    trusted: bool,
    options: CheckoutOptions,
    origin: Origin,
    credential: Option<Credential>,
    count: AtomicU32,
}

impl Bench {
    fn new(url: &str) -> Bench {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("state")).expect("a folder");
        Bench {
            repositories: Repositories::of_state(&folder.path().join("state")),
            settings: CheckoutSettings::recommended(),
            trusted: true,
            options: CheckoutOptions::default(),
            origin: Origin {
                repository: Some(url.to_owned()),
                ..Origin::default()
            },
            credential: None,
            count: AtomicU32::new(0),
            folder,
        }
    }

    fn at(mut self, commit: &str) -> Bench {
        self.origin.commit = Some(commit.to_owned());
        self
    }

    fn with(mut self, secret: &str) -> Bench {
        let secret = Secret::new(secret);
        self.credential = Some(Credential::from_secret(&secret).expect("a credential"));
        self.options.credential = Some("GIT".to_owned());
        self
    }

    /// Checks out into a workspace of its own.
    async fn checkout(&self) -> Outcome {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let root = self.folder.path().join(format!("attempt-{number}"));
        self.checkout_at(&root).await
    }

    async fn checkout_at(&self, root: &Path) -> Outcome {
        let (workspace, tmp) = (root.join("workspace"), root.join("tmp"));
        for folder in [&workspace, &tmp] {
            fs::create_dir_all(folder).expect("a folder");
        }
        let spool = root.join("log");
        let log = log(&spool);
        let checkout = Checkout {
            settings: &self.settings,
            repositories: &self.repositories,
            trusted: self.trusted,
            origin: &self.origin,
            options: &self.options,
            credential: self.credential.as_ref(),
            workspace: &workspace,
            tmp: &tmp,
            log: &log,
        };
        let done = checkout.perform().await;
        Outcome {
            done,
            workspace,
            tmp,
            log: fs::read_to_string(spool).expect("a log"),
        }
    }

    /// Repositories that are kept, by trust.
    fn kept(&self, trust: &str) -> Vec<PathBuf> {
        let folder = self.folder.path().join("state/repositories").join(trust);
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }
}

fn log(spool: &Path) -> Log {
    let identity = Identity {
        run_id: "run_1".into(),
        job_id: "job_1_1".into(),
        job_name: "work".into(),
        attempt: 1,
        lease_epoch: 1,
    };
    let sizes = Arc::new(watch::Sender::new(0));
    Log::begin(spool, 1 << 20, sizes, Arc::new(Silent), identity).expect("a log")
}

/// What a checkout came to.
#[derive(Debug)]
struct Outcome {
    done: Result<(), Failed>,
    workspace: PathBuf,
    tmp: PathBuf,
    log: String,
}

impl Outcome {
    #[track_caller]
    fn expect(self) -> Outcome {
        assert_eq!(self.done, Ok(()), "{}", self.log);
        let left = fs::read_dir(&self.tmp).expect("a folder").count();
        assert_eq!(left, 0, "nothing of the checkout stays in {:?}", self.tmp);
        self
    }

    #[track_caller]
    fn failed(&self) -> &Failed {
        self.done.as_ref().expect_err(&self.log)
    }

    fn file(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.workspace.join(name)).ok()
    }

    /// What git says of the workspace.
    fn git(&self, arguments: &[&str]) -> String {
        delta_testkit::git::git(&self.workspace, arguments).expect("git")
    }
}

/// A server with one repository of a few commits.
struct Hub {
    root: tempfile::TempDir,
    http: GitHttp,
    app: Repository,
    /// The first commit is the oldest.
    commits: Vec<String>,
}

impl Hub {
    fn start() -> Hub {
        let root = tempfile::tempdir().expect("a folder");
        let app = Repository::make(root.path(), "app.git").expect("a repository");
        let commits = (1..=3).map(|version| {
            let text = format!("version {version}\n");
            app.commit("version.txt", &text).expect("a commit")
        });
        let commits = commits.collect();
        let http = GitHttp::start(root.path()).expect("a server");
        Hub {
            root,
            http,
            app,
            commits,
        }
    }

    fn url(&self) -> String {
        self.http.url("app.git")
    }
}
