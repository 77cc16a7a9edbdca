//! Runs the binary in a folder of its own, without any of our variables, and makes what it says
//! comparable: ids, times and folders become words.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use delta_testkit::process::{Process, Spawn};
use delta_testkit::wait::eventually;
use serde_json::Value;
use tempfile::TempDir;

/// Longer than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn binary() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_delta-ci"))
}

/// Starts the binary as one of its workers, hands it an order, and waits for its end.
pub fn worker(command: &str, order: &Value) -> Output {
    let mut worker = Command::new(binary())
        .arg(command)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a worker");
    let mut input = worker.stdin.take().expect("its input");
    input
        .write_all(order.to_string().as_bytes())
        .expect("an order");
    drop(input);
    worker.wait_with_output().expect("its end")
}

/// The root of the workspace.
pub fn workspace() -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    crates.canonicalize().expect("the workspace exists")
}

/// Runs git in a folder, as nobody in particular.
pub fn git(folder: &Path, arguments: &[&str]) {
    delta_testkit::git::git(folder, arguments).expect("git");
}

/// A folder to work in, and what was said there.
pub struct Place {
    pub folder: TempDir,
    /// What is kept between two runs, for this place alone.
    pub cache: TempDir,
}

/// What one call of the binary did.
#[derive(Debug)]
pub struct Ran {
    pub exit: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Place {
    pub fn new() -> Place {
        let folder = || {
            let folder = tempfile::Builder::new().prefix("delta-cli-").tempdir();
            folder.expect("a temporary folder")
        };
        Place {
            folder: folder(),
            cache: folder(),
        }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path().join(name), text).expect("a file is written");
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(binary());
        command.current_dir(self.path()).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"DELTA_") {
                command.env_remove(name);
            }
        }
        for name in ["RUST_LOG", "CI", "CARGO_TARGET_DIR"] {
            command.env_remove(name);
        }
        command.env("XDG_CACHE_HOME", self.cache.path());
        command
    }

    /// Types it at a terminal of 24 lines and so many columns: how it ended, and all that was
    /// written to the terminal.
    pub fn on_a_terminal(&self, words: &str, columns: u32) -> (i32, String) {
        let command = format!(
            "stty rows 24 cols {columns}; exec {} {words}",
            binary().display()
        );
        let output = Command::new("script")
            .args(["-q", "-e", "-c", &command, "/dev/null"])
            .current_dir(self.path())
            .env("TERM", "xterm-256color")
            .env("XDG_CACHE_HOME", self.cache.path())
            .env_remove("NO_COLOR")
            .stdin(Stdio::null())
            .output()
            .expect("script of util-linux");
        let seen = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code().unwrap_or(-1), seen)
    }

    pub fn delta<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        let output = self.command().args(args).output().expect("the binary runs");
        Ran {
            exit: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Types a line whose words are separated by blanks: how it ended and what it said.
    pub fn say(&self, line: &str) -> Ran {
        self.delta(line.split_whitespace())
    }

    /// What a terminal of so many columns shows, both streams. It cannot move its cursor, so that
    /// lines stand as they were written.
    pub fn on_terminal(&self, columns: usize, line: &str) -> String {
        let binary = binary();
        let line = format!(
            "stty rows 24 cols {columns}; exec {} {line}",
            binary.display()
        );
        let mut command = self.command();
        let mut script = Command::new("script");
        script.args(["-q", "-e", "-c", &line, "/dev/null"]);
        for (name, value) in command.env("TERM", "dumb").env("NO_COLOR", "1").get_envs() {
            match value {
                Some(value) => script.env(name, value),
                None => script.env_remove(name),
            };
        }
        let script = script.current_dir(self.path()).stdin(Stdio::null());
        let output = script.output().expect("script of util-linux");
        String::from_utf8_lossy(&output.stdout).replace('\r', "")
    }

    /// A server in `data`, with these further arguments.
    pub fn server(&self, extra: &[&str]) -> ServerProcess {
        self.server_at("127.0.0.1:0", extra)
    }

    /// A server in `data` at an address of the caller's choice, with these further arguments.
    pub fn server_at(&self, address: &str, extra: &[&str]) -> ServerProcess {
        let data = self.path().join("data");
        let spawn = Spawn::new(binary())
            .args(["server", "--json", "--listen", address, "--data"])
            .arg(&data)
            .args(extra)
            .current_dir(self.path());
        let process = spawn.spawn().expect("the server starts");
        let line = process
            .wait_for_line("listening", PATIENCE)
            .expect("the server listens");
        let said: Value = serde_json::from_str(&line).expect("one line of JSON");
        let url = said["listening"].as_str().expect("an address").to_owned();
        ServerProcess { process, url, data }
    }
}

impl Ran {
    /// Exit code and both streams, comparable.
    pub fn shown(&self) -> String {
        let mut shown = format!("exit {}", self.exit);
        for (name, text) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if !text.is_empty() {
                shown.push_str(&format!("\n--- {name}\n{}", comparable(text)));
            }
        }
        shown
    }

    #[track_caller]
    pub fn expect(self, exit: i32) -> Ran {
        assert_eq!(self.exit, exit, "{}", self.shown());
        self
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).expect("stdout is JSON")
    }
}

/// A server that ends with the test.
pub struct ServerProcess {
    pub process: Process,
    pub url: String,
    pub data: PathBuf,
}

impl ServerProcess {
    /// Asks over the admin socket.
    pub fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let mut socket =
            UnixStream::connect(self.data.join("admin.sock")).expect("the admin socket is there");
        socket
            .set_read_timeout(Some(PATIENCE))
            .expect("a time limit");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        socket.write_all(head.as_bytes()).expect("the head is sent");
        socket.write_all(body.as_bytes()).expect("the body is sent");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("an answer");
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let value = serde_json::from_str(body).unwrap_or(Value::Null);
        (status.expect("a status"), value)
    }

    /// A run of one job with these steps; its id and the job's.
    pub fn submit(&self, steps: &[&str]) -> (String, String) {
        let body = serde_json::json!({"jobs": [{
            "name": "only",
            "job_spec": {"name": "only", "steps": steps},
        }]});
        let (status, run) = self.ask("POST", "/api/v1/runs", &body);
        assert_eq!(status, 201, "{run}");
        let text = |value: &Value| value.as_str().expect("an id").to_owned();
        (text(&run["run_id"]), text(&run["jobs"][0]["job_id"]))
    }

    pub fn job(&self, job: &str) -> Value {
        self.ask("GET", &format!("/api/v1/jobs/{job}"), &Value::Null)
            .1
    }

    /// Waits until the run has an outcome, and returns it.
    pub fn outcome(&self, run: &str) -> String {
        eventually(PATIENCE, "the run ends", || {
            let (_, view) = self.ask("GET", &format!("/api/v1/runs/{run}"), &Value::Null);
            match view["outcome"].as_str() {
                Some(outcome) => Ok(outcome.to_owned()),
                None => Err(view["state"].clone()),
            }
        })
    }

    /// Waits until the job's newest attempt is in this state.
    pub fn until(&self, job: &str, state: &str) {
        eventually(PATIENCE, &format!("the job is {state}"), || {
            let view = self.job(job);
            if view["state"] == state {
                Ok(())
            } else {
                Err(view["state"].clone())
            }
        });
    }
}

/// One blank between words, ids and times and folders as words.
pub fn comparable(text: &str) -> String {
    let line = |line: &str| {
        let words: Vec<String> = line.split_whitespace().map(word).collect();
        words.join(" ")
    };
    let lines: Vec<String> = text.lines().map(line).collect();
    lines.join("\n").trim_end().to_owned()
}

fn word(word: &str) -> String {
    let bare = word.trim_end_matches([':', ',', '.', ')']);
    let tail = &word[bare.len()..];
    let temporary = std::env::temp_dir().display().to_string();
    let shown = if let Some(id) = id(bare) {
        id
    } else if is_time(bare) {
        "TIME".into()
    } else if bare.starts_with(&temporary) {
        "FOLDER".into()
    } else {
        bare.to_owned()
    };
    format!("{shown}{tail}")
}

fn id(word: &str) -> Option<String> {
    let (kind, digits) = word.split_once('_')?;
    // An agent, and its slot behind it.
    if kind == "agt" {
        let (_, slot) = digits.split_once('/').unwrap_or((digits, ""));
        return Some(format!("agt_ID/{slot}"));
    }
    if !matches!(kind, "run" | "job") || digits.len() < 32 {
        return None;
    }
    let (hex, number) = digits.split_at(32);
    hex.bytes()
        .all(|byte| byte.is_ascii_hexdigit())
        .then(|| format!("{kind}_ID{number}"))
}

fn is_time(word: &str) -> bool {
    let starts = word.starts_with(|c: char| c.is_ascii_digit());
    starts && word.ends_with(['s', 'm', 'h']) && delta_like(word)
}

/// Digits, points and the letters of units.
fn delta_like(word: &str) -> bool {
    word.chars()
        .all(|c| c.is_ascii_digit() || matches!(c, '.' | 'm' | 's' | 'h' | 'd'))
}
