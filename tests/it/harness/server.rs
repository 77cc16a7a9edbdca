//! A real `delta-ci server` on a real socket: started, killed, started again on the same port and
//! data. Timings are scaled down by a hundred.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use delta_testkit::process::{Process, Spawn, binary};
use tempfile::TempDir;

use super::person::{Person, SOON};
use super::runner::Runner;

/// How a server is started.
#[derive(Clone, Debug)]
pub struct Options {
    flags: Vec<(String, String)>,
    environment: Vec<(String, String)>,
    /// PostgreSQL by its address; SQLite in the data folder without it.
    pub store: Option<String>,
}

impl Options {
    /// SQLite, with timings of about a second: for what is meant to run out.
    pub fn quick() -> Options {
        let options = Options {
            flags: Vec::new(),
            environment: Vec::new(),
            store: None,
        };
        options
            .flag("lease-ttl", "1s")
            .flag("heartbeat-interval", "250ms")
            .flag("ack-timeout", "4s")
            .flag("cancel-deadline", "500ms")
            .flag("retry-base", "50ms")
            .flag("sweep", "50ms")
    }

    /// SQLite, with leases and cancels that outlive a slow machine's restart: for what must not
    /// run out.
    pub fn patient() -> Options {
        Options::quick()
            .flag("lease-ttl", "60s")
            .flag("ack-timeout", "60s")
            .flag("cancel-deadline", "60s")
    }

    /// As patient, but for cancels that nobody acknowledges, which are soon forced.
    pub fn patient_but_forcing() -> Options {
        Options::patient().flag("cancel-deadline", "3s")
    }

    /// SQLite, with leases that outlive a restart and a short time to acknowledge one: for a load
    /// whose runners die between the two, so that their jobs go on elsewhere within the test.
    pub fn patient_with_mortal_runners() -> Options {
        Options::patient().flag("ack-timeout", "4s")
    }

    pub fn on(mut self, store: &str) -> Options {
        self.store = Some(store.to_owned());
        self
    }

    pub fn flag(mut self, name: &str, value: &str) -> Options {
        self.flags.retain(|(other, _)| other != name);
        self.flags.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn env(mut self, name: &str, value: impl Into<String>) -> Options {
        self.environment.push((name.to_owned(), value.into()));
        self
    }
}

/// A server and everything it has left behind.
pub struct Server {
    options: Options,
    folder: TempDir,
    addr: SocketAddr,
    process: Process,
    /// Those that ended, for what they said.
    past: Vec<Process>,
    /// Credentials it handed out: none may ever be seen again.
    secrets: RefCell<Vec<String>>,
}

impl Server {
    #[track_caller]
    pub fn start(options: Options) -> Server {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (process, addr) = launch(&options, folder.path(), "127.0.0.1:0");
        Server {
            options,
            folder,
            addr,
            process,
            past: Vec::new(),
            secrets: RefCell::default(),
        }
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// A folder of the test's own, beside the server's.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn process(&self) -> &Process {
        &self.process
    }

    #[track_caller]
    pub fn kill9(&self) {
        self.process.kill9().expect("kill -9");
    }

    /// Starts it again on the same port and data.
    #[track_caller]
    pub fn start_again(&mut self) {
        assert!(!self.process.is_running(), "it is still running");
        let (process, _) = launch(&self.options, self.folder.path(), &self.addr.to_string());
        self.past
            .push(std::mem::replace(&mut self.process, process));
    }

    /// Makes a token with the command line, beside the running server.
    #[track_caller]
    pub fn token(&self, role: &str) -> String {
        let done = self.cli(&["token", "create", "--role", role]);
        assert_eq!(done.code, Some(0), "{done:?}");
        let token = done.stdout.trim_end().to_owned();
        assert!(
            !token.contains(char::is_whitespace),
            "alone on stdout: {token:?}"
        );
        self.secrets.borrow_mut().push(token.clone());
        token
    }

    #[track_caller]
    pub fn person(&self) -> Person {
        Person::new(self.addr, &self.token("user"))
    }

    /// A runner with a credential of its own.
    #[track_caller]
    pub fn runner(&self, id: &str) -> Runner {
        Runner::new(self.addr, &self.token("runner"), id)
    }

    /// An agent of this name, each time on the same folders and with the same token.
    #[track_caller]
    pub fn agent(&self, name: &str) -> Spawn {
        let file = self.folder().join(format!("{name}.token"));
        if !file.exists() {
            std::fs::write(&file, self.token("runner")).expect("a token file");
        }
        delta_ci()
            .args(["agent", "--name", name, "--server"])
            .arg(format!("http://{}", self.addr()))
            .arg("--token-file")
            .arg(&file)
            .arg("--work-dir")
            .arg(self.folder().join(name))
    }

    /// Runs `delta-ci` on this server's data folder.
    #[track_caller]
    pub fn cli(&self, arguments: &[&str]) -> Done {
        let data = self.data();
        let data = data.to_str().expect("a readable path");
        let mut spawn = delta_ci().args(arguments).args(["--data", data]);
        if let Some(store) = &self.options.store {
            spawn = spawn.env("DELTA_STORE", store);
        }
        finish(spawn)
    }

    /// Folds the events and compares: nothing may differ (I17, I18).
    #[track_caller]
    pub fn doctor(&self) {
        let done = self.cli(&["doctor"]);
        assert_eq!(done.code, Some(0), "the doctor found something: {done:?}");
    }

    /// Everything its processes have said.
    pub fn log(&self) -> String {
        let all = self.past.iter().chain([&self.process]);
        all.map(|process| process.stdout() + &process.stderr())
            .collect()
    }

    /// What holds at the end of every test: the doctor is content, nobody panicked, and no secret
    /// was said (I17, I24).
    #[track_caller]
    pub fn check(&self) {
        self.doctor();
        self.check_log();
    }

    /// The part of [`Server::check`] that needs no store.
    #[track_caller]
    pub fn check_log(&self) {
        let log = self.log();
        assert!(!log.contains("panicked"), "{log}");
        assert_eq!(secret_in(&log), None);
        for secret in self.secrets.borrow().iter() {
            assert!(!log.contains(secret.as_str()), "a token was logged");
        }
    }
}

/// What looks like a lease token or a credential in a text that must have none (I24).
pub fn secret_in(text: &str) -> Option<&str> {
    /// The random part alone has 43 characters.
    const LONG: usize = 43;
    for prefix in ["lease_", "delta_runner_", "delta_user_", "delta_admin_"] {
        for (at, _) in text.match_indices(prefix) {
            let rest = &text[at + prefix.len()..];
            let letter = |c: &char| c.is_ascii_alphanumeric() || *c == '-' || *c == '_';
            let length = rest.chars().take_while(letter).count();
            if length >= LONG {
                return Some(&text[at..at + prefix.len() + length]);
            }
        }
    }
    None
}

/// The program under test, with nothing of the caller's own Delta settings.
pub fn delta_ci() -> Spawn {
    Spawn::new(binary("delta-ci").expect("the binary"))
        .clean_env()
        .env("PATH", std::env::var("PATH").unwrap_or_default())
        .env("RUST_BACKTRACE", "1")
        .env("TMPDIR", std::env::temp_dir())
}

/// A command that has ended.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

#[track_caller]
pub fn finish(spawn: Spawn) -> Done {
    let process = spawn.spawn().expect("a process");
    let status = process.wait(Duration::from_secs(120)).expect("it ends");
    Done {
        code: status.code(),
        stdout: process.stdout(),
        stderr: process.stderr(),
    }
}

#[track_caller]
fn launch(options: &Options, folder: &Path, listen: &str) -> (Process, SocketAddr) {
    let mut spawn = delta_ci()
        .arg("server")
        .arg("--data")
        .arg(folder.join("data"));
    spawn = spawn.args(["--listen", listen]);
    for (name, value) in &options.flags {
        spawn = spawn.arg(format!("--{name}")).arg(value);
    }
    for (name, value) in &options.environment {
        spawn = spawn.env(name, value);
    }
    if let Some(store) = &options.store {
        // Not in argv: the address may hold a password.
        spawn = spawn.env("DELTA_STORE", store);
    }
    let process = spawn.spawn().expect("a server");
    let line = process
        .wait_for_line("listening on", SOON)
        .expect("it listens");
    let addr = line.split("://").nth(1).and_then(|addr| addr.parse().ok());
    (
        process,
        addr.unwrap_or_else(|| panic!("no address in {line:?}")),
    )
}
