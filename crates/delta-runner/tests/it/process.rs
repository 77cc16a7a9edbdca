//! A runner in a process, and connections to it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long anything may take on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The example of this crate that has a function for every case.
pub fn program() -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let built = this.parent().and_then(|deps| deps.parent()).unwrap();
    built.join("examples/table")
}

/// One that no connection of somebody else's gets before the runner does: nor one of ours, which
/// would meet itself there.
pub fn free_port() -> u16 {
    delta_testkit::port::free_port().unwrap()
}

pub struct Process {
    pub child: Child,
    pub address: String,
}

impl Process {
    /// Started as old workers do, by the environment.
    pub fn start(more: &[(&str, &str)]) -> Process {
        let address = format!("127.0.0.1:{}", free_port());
        let mut command = Command::new(program());
        command.env("RRQ_RUNNER_TCP_SOCKET", &address);
        command.envs(more.iter().copied());
        Process::spawn(command, address)
    }

    pub fn spawn(command: Command, address: String) -> Process {
        Process::spawn_with(command, address, Stdio::null())
    }

    /// What it says goes there.
    pub fn spawn_with(mut command: Command, address: String, said: Stdio) -> Process {
        let child = command.stderr(said).spawn().unwrap();
        let process = Process { child, address };
        // The probe of real workers: a connection that is closed at once.
        drop(process.connect());
        process
    }

    pub fn connect(&self) -> Connection {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match TcpStream::connect(&self.address) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(PATIENCE)).unwrap();
                    return Connection(stream);
                }
                Err(error) if Instant::now() > deadline => panic!("{error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([name, &pid]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits until nobody listens there any more.
    pub fn refuses(&self, otherwise: &str) {
        let began = Instant::now();
        while TcpStream::connect(&self.address).is_ok() {
            assert!(began.elapsed() < PATIENCE, "{otherwise}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for its end.
    pub fn code(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "the runner does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two files of a function that begins and ends by them.
pub struct Marks {
    pub path: PathBuf,
    pub go: PathBuf,
    _folder: tempfile::TempDir,
}

impl Marks {
    pub fn new() -> Marks {
        let folder = tempfile::tempdir().unwrap();
        Marks {
            path: folder.path().join("begun"),
            go: folder.path().join("go"),
            _folder: folder,
        }
    }

    pub fn params(&self) -> Value {
        json!({"path": self.path, "go": self.go})
    }

    /// The process that it has begun in.
    pub fn begun(&self) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = std::fs::read_to_string(&self.path).unwrap_or_default();
            if let Some((pid, _)) = text.split_once('\n') {
                return pid.to_owned();
            }
            assert!(Instant::now() < deadline, "never begun");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn let_go(&self) {
        std::fs::write(&self.go, "").unwrap();
    }
}

pub struct Connection(pub TcpStream);

impl Connection {
    pub fn send(&mut self, message: &Value) {
        self.frame(message.to_string().as_bytes());
    }

    pub fn frame(&mut self, json: &[u8]) {
        self.bytes(&(json.len() as u32).to_be_bytes());
        self.bytes(json);
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// Whether nothing comes for so long.
    pub fn is_silent(&self, time: Duration) -> bool {
        self.0.set_read_timeout(Some(time)).unwrap();
        let nothing = self.0.peek(&mut [0]);
        self.0.set_read_timeout(Some(PATIENCE)).unwrap();
        nothing.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }

    /// The next answer; nothing when the connection is closed.
    pub fn hear(&mut self) -> Option<Value> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length).ok()?;
        let mut json = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut json).unwrap();
        let message: Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(message["type"], "response");
        Some(message["payload"].clone())
    }

    /// Asks, and hears the answer to it.
    pub fn ask(&mut self, id: &str, function: &str, params: Value) -> Value {
        self.send(&request(id, function, params));
        let heard = self.hear().expect("an answer");
        assert_eq!(heard["request_id"], id);
        assert_eq!(heard["job_id"], format!("job-{id}"));
        heard
    }
}

pub fn request(id: &str, function: &str, params: Value) -> Value {
    let job = format!("job-{id}");
    json!({ "type": "request", "payload": {
        "protocol_version": "2", "request_id": id, "job_id": job, "function_name": function,
        "params": params, "context": {
            "job_id": job, "attempt": 1, "enqueue_time": "2026-01-04T08:00:00.123456789Z",
            "queue_name": "rrq:queue:default", "worker_id": "w", "correlation_context": null } } })
}

/// A request with a deadline.
pub fn until(mut request: Value, from_now: Duration) -> Value {
    let at = jiff::Timestamp::now() + from_now;
    request["payload"]["context"]["deadline"] = json!(at.to_string());
    request
}

pub fn cancel(job: &str, request: Option<&str>) -> Value {
    json!({ "type": "cancel", "payload": { "protocol_version": "2", "job_id": job,
        "request_id": request, "hard_kill": false } })
}
