//! Folders as people type them: relative, and inside a checkout of theirs. Nothing that a server
//! starts in another folder loses its way, what dies says why, and git is offered nothing.

use std::fs;
use std::path::Path;

use delta_testkit::git::{GitHttp, Repository, git};
use delta_testkit::process::Process;
use serde_json::Value;

use crate::harness::person::SOON;
use crate::harness::server::{Done, finish};
use crate::harness::{Person, delta_ci, until};

/// Somebody in a new folder, which is a checkout, and a repository that a git server has.
struct Newcomer {
    folder: tempfile::TempDir,
    _app: Repository,
    http: GitHttp,
    _root: tempfile::TempDir,
}

impl Newcomer {
    fn new() -> Newcomer {
        let (folder, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        git(folder.path(), &["init", "-q"]).unwrap();
        let app = Repository::make(root.path(), "team/app.git").unwrap();
        app.commit(".delta-ci.yaml", "jobs: {unit: {steps: ['echo hello']}}")
            .unwrap();
        Newcomer {
            folder,
            _app: app,
            http: GitHttp::start(root.path()).unwrap(),
            _root: root,
        }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    #[track_caller]
    fn types(&self, words: &[&str]) -> Done {
        finish(delta_ci().args(words).current_dir(self.path()))
    }

    #[track_caller]
    fn said(&self, words: &[&str]) -> String {
        let done = self.types(words);
        assert_eq!(done.code, Some(0), "{words:?}: {done:?}");
        done.stdout
    }

    /// Starts what listens, with what it says of its address.
    fn starts(&self, words: &[&str], path: Option<&Path>) -> (Process, String) {
        let mut spawn = delta_ci().args(words).current_dir(self.path());
        if let Some(path) = path {
            spawn = spawn.env("PATH", path);
        }
        let process = spawn.spawn().unwrap();
        let line = process.wait_for_line("listening on", SOON).unwrap();
        let address = line.split("://").nth(1).unwrap().to_owned();
        (process, address)
    }

    /// Registers the repository and has its branch planned, by hand; the run.
    #[track_caller]
    fn triggered(&self, data: &[&str]) -> String {
        fs::write(self.path().join("hook.secret"), "a secret of the webhook\n").unwrap();
        let url = self.http.url("team/app.git");
        let add = "repo add app --forge gitea --project team/app --webhook-secret-file hook.secret";
        let add: Vec<&str> = add.split(' ').chain(["--url", &url]).collect();
        self.said(&[&add, data].concat());
        let run = self.said(&[&["trigger", "app", "--ref", "main"], data].concat());
        run.trim().to_owned()
    }

    /// The run when it is over.
    #[track_caller]
    fn over(&self, run: &str, data: &[&str]) -> Value {
        let look = || {
            let text = self.said(&[&["--json", "show", run], data].concat());
            serde_json::from_str::<Value>(&text).unwrap()
        };
        until("the run is over", look, |view| !view["outcome"].is_null())
    }

    /// What `git add -A` would take along.
    fn offered(&self) -> String {
        git(self.path(), &["add", "-A", "--dry-run"]).unwrap()
    }
}

#[test]
fn up_in_a_new_folder_plans_and_runs_a_registered_repository() {
    let newcomer = Newcomer::new();
    let (up, _) = newcomer.starts(&["up", "--listen", "127.0.0.1:0", "--slots", "1"], None);
    let run = newcomer.triggered(&[]);
    let over = newcomer.over(&run, &[]);
    assert_eq!(over["outcome"], "SUCCESS", "{over}\n{}", up.stderr());
    let log = newcomer.said(&["logs", "latest/unit"]);
    assert!(log.contains("hello"), "{log}");
    // Its folder has keys and tokens in it.
    assert!(newcomer.path().join(".delta-ci/secret.key").exists());
    let offered = newcomer.offered();
    assert!(offered.contains("hook.secret"), "{offered}");
    assert!(!offered.contains(".delta-ci/"), "{offered}");
}

#[test]
fn a_server_and_an_agent_with_relative_folders_plan_and_run() {
    let newcomer = Newcomer::new();
    let data = ["--data", "./data"];
    let server = "server --data ./data --objects objects --listen 127.0.0.1:0";
    let words: Vec<&str> = server.split(' ').collect();
    let (server, address) = newcomer.starts(&words, None);
    let token = newcomer.said(&[&["token", "create", "--role", "runner"], &data[..]].concat());
    fs::write(newcomer.path().join("runner.token"), token).unwrap();
    let url = format!("http://{address}");
    let agent = "agent --token-file runner.token --work-dir ./work --state-dir state --server";
    let agent: Vec<&str> = agent.split(' ').chain([url.as_str()]).collect();
    let agent = delta_ci().args(agent).current_dir(newcomer.path());
    let agent = agent.spawn().unwrap();
    let run = newcomer.triggered(&data);
    let over = newcomer.over(&run, &data);
    let logs = || server.stderr() + &agent.stderr();
    assert_eq!(over["outcome"], "SUCCESS", "{over}\n{}", logs());
    let offered = newcomer.offered();
    for folder in ["data/", "objects/", "work/", "state/"] {
        assert!(newcomer.path().join(folder).is_dir(), "{folder}");
        assert!(!offered.contains(folder), "{offered}");
    }
}

/// A git that reads no tree, and says so in a way that would clear a screen.
fn broken_git(folder: &Path) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = std::env::var("PATH").unwrap();
    let real = path.split(':').map(|it| Path::new(it).join("git"));
    let real = real.into_iter().find(|it| it.is_file()).expect("git");
    let script = format!(
        "#!/bin/sh\nfor word; do\n  case \"$word\" in ls-tree)\n    \
         printf 'fatal: the tree is \\033[2Jgone\\n' >&2; exit 128;;\n  esac\ndone\n\
         exec {} \"$@\"\n",
        real.display()
    );
    let git = folder.join("git");
    fs::write(&git, script).unwrap();
    fs::set_permissions(&git, PermissionsExt::from_mode(0o755)).unwrap();
    format!("{}:{path}", folder.display()).into()
}

#[test]
fn a_worker_that_dies_says_why_wherever_one_looks() {
    let newcomer = Newcomer::new();
    let programs = tempfile::tempdir().unwrap();
    let path = broken_git(programs.path());
    let words = ["server", "--data", "data", "--listen", "127.0.0.1:0"];
    let (server, address) = newcomer.starts(&words, Some(&path));
    let data = ["--data", "data"];
    let run = newcomer.triggered(&data);
    let over = newcomer.over(&run, &data);
    assert_eq!(over["cause"], "plan_error", "{over}");
    let token = newcomer.said(&[&["token", "create", "--role", "user"], &data[..]].concat());
    let person = Person::new(address.parse().unwrap(), token.trim());
    let plan = person.get(&format!("/api/v1/runs/{run}/plan")).to_string();
    let shown = newcomer.said(&[&["show", run.as_str()], &data[..]].concat());
    let why = newcomer.said(&[&["why", run.as_str()], &data[..]].concat());
    for said in [plan, shown, why, server.stderr()] {
        assert!(said.contains("the tree is"), "{said}");
        assert!(
            said.contains("gone") && said.contains("git ls-tree"),
            "{said}"
        );
        assert!(!said.contains("\u{1b}[2J"), "{said}");
    }
}
