//! What jobs get at on an agent that confines them little: an untrusted one at nothing of its
//! user's, and none at the agent itself. What is held against them here is what the agent says
//! that this machine enforces.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;

use delta_testkit::process::{Process, Spawn};
use serde_json::{Value, json};

use crate::faults_agent::{only_job, run_of};
use crate::handover::log_of;
use crate::harness::{Options, Person, Server, delta_ci, until};

/// A user without any right here.
const NOBODY: u32 = 65534;

/// A place that only its owner can write, with folders of the agent's user in it.
pub struct Place {
    folder: tempfile::TempDir,
    /// Whoever the agent is, when it is not us.
    user: Option<u32>,
}

impl Place {
    pub fn new() -> Place {
        Place::of(rustix::process::geteuid().is_root().then_some(NOBODY))
    }

    /// Where the agent is whoever runs the test.
    pub fn of_root() -> Place {
        Place::of(None)
    }

    fn of(user: Option<u32>) -> Place {
        let folder = match user {
            // Not where everybody makes files: what is above the state folder is somebody else's.
            Some(_) => tempfile::tempdir_in("/var/lib").unwrap(),
            None => tempfile::tempdir().unwrap(),
        };
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).unwrap();
        let place = Place { folder, user };
        place.make("home");
        place.make("home/sub");
        place
    }

    fn make(&self, name: &str) {
        std::fs::create_dir(self.path(name)).unwrap();
        self.give(name);
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn give(&self, name: &str) {
        chown(self.path(name), self.user, self.user).unwrap();
    }

    /// A folder that the agent's jobs share with the test.
    pub fn shared(&self, name: &str) -> PathBuf {
        self.make(name);
        self.path(name)
    }

    fn agent(&self, server: &Server, name: &str, sandbox: &str) -> Process {
        self.agent_with(server, name, sandbox, &[])
    }

    /// An agent that works as the place's user.
    pub fn agent_with(&self, server: &Server, name: &str, sandbox: &str, more: &[&str]) -> Process {
        self.make(name);
        let token = format!("{name}.token");
        std::fs::write(self.path(&token), server.token("runner")).unwrap();
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(self.path(&token), private).unwrap();
        self.give(&token);
        self.agent_again(server, name, sandbox, more)
    }

    /// An agent that works as the place's user, on the folders of one before it.
    pub fn agent_again(
        &self,
        server: &Server,
        name: &str,
        sandbox: &str,
        more: &[&str],
    ) -> Process {
        let token = format!("{name}.token");
        let program = delta_testkit::process::binary("delta-ci").unwrap();
        let spawn = match self.user {
            None => delta_ci(),
            Some(user) => {
                // Its folder may be closed to that user.
                let copy = self.path("delta-ci");
                if !copy.exists() {
                    std::fs::copy(&program, &copy).unwrap();
                }
                Spawn::new(copy)
                    .clean_env()
                    .env("PATH", std::env::var("PATH").unwrap_or_default())
                    .user(user)
            }
        };
        spawn
            .env("HOME", self.path("home"))
            .env("OF_THE_HOUSE", "passed on")
            .args(["agent", "--name", name, "--sandbox", sandbox])
            .args(["--pass-env", "OF_THE_HOUSE"])
            .args(["--server", &format!("http://{}", server.addr())])
            .arg("--token-file")
            .arg(self.path(&token))
            .arg("--work-dir")
            .arg(self.path(name))
            .args(more)
            .spawn()
            .unwrap()
    }

    /// Tries everything against the agent, and says what could be done.
    fn attacks(&self, name: &str, agent: &Process) -> String {
        format!(
            "state={state}; agent={agent}\n\
             cat $state/lock && echo READ-LOCK\n\
             cat $state/attempts/*/note > /dev/null && echo READ-NOTE\n\
             cat {token} > /dev/null && echo READ-TOKEN\n\
             echo x > $state/attempts/x && echo WROTE-STATE\n\
             for pid in $PPID $agent; do\n\
               cat /proc/$pid/environ > /dev/null && echo READ-ENVIRON\n\
               kill -CONT $pid && echo SIGNALED\n\
             done\n\
             touch ~/new && cat ~/new && mv ~/new ~/sub/new && ls / /var/lib > /dev/null \
             && echo at-home\n\
             true",
            state = self.path(name).join("state").display(),
            token = self.path(&format!("{name}.token")).display(),
            agent = agent.pid(),
        )
    }
}

/// What the agent of this name says that it enforces.
pub fn enforced(person: &Person, name: &str) -> Vec<String> {
    let found = |agents: &Value| {
        let agents = agents["agents"].as_array().cloned().unwrap_or_default();
        agents.into_iter().find(|agent| agent["name"] == name)
    };
    let agents = until(
        "the agent is there",
        || person.get("/api/v1/agents"),
        |it| found(it).is_some_and(|agent| agent["enforced"] != json!([])),
    );
    let words = found(&agents).unwrap()["enforced"].clone();
    let words = words.as_array().unwrap().iter();
    words.map(|it| it.as_str().unwrap().to_owned()).collect()
}

/// The lines a job of this one step printed.
pub fn printed(person: &Person, body: &Value) -> Vec<String> {
    let run = person.create(body);
    let over = person.until_over(&run);
    let log = log_of(person, &only_job(person, &run));
    assert_eq!(over["outcome"], "SUCCESS", "{log}");
    log.lines().map(str::to_owned).collect()
}

pub fn says(words: &[String], word: &str) -> bool {
    words.iter().any(|it| it == word)
}

// D14: a credential that lies open is told of, once, with what to type.
#[test]
fn an_agent_says_that_everybody_can_read_its_token() {
    let server = Server::start(Options::patient());
    for (mode, said) in [(0o644, true), (0o640, false), (0o600, false)] {
        // Each has a name of its own: only once it is listed has it said all that it will.
        let name = format!("box-{mode:o}");
        let token = server.folder().join(format!("{name}.token"));
        std::fs::write(&token, server.token("runner")).unwrap();
        std::fs::set_permissions(&token, std::fs::Permissions::from_mode(mode)).unwrap();
        let agent = server.agent(&name).spawn().unwrap();
        enforced(&server.person(), &name);
        let fix = format!("chmod 600 {}", token.canonicalize().unwrap().display());
        let log = agent.stderr();
        assert_eq!(log.contains(&fix), said, "{mode:o}: {log}");
        agent.kill9().unwrap();
    }
    server.check();
}

// EP-42, F43: whoever asks why a job waits is told that the agent's disk is full.
#[test]
fn an_agent_whose_disk_is_full_is_told_of() {
    let server = Server::start(Options::quick());
    let person = server.person();
    let agent = server.agent("box").args(["--min-free-mb", "999999999"]);
    let agent = agent.spawn().unwrap();
    let job = only_job(&person, &person.create(&run_of("true")));
    let told = until(
        "it is told",
        || server.cli(&["why", &job]).stdout,
        |text| text.contains("turns work away"),
    );
    let why = "the only fit agent, box, turns work away: its disk is full, ";
    assert!(told.contains(why), "{told}");
    assert!(
        agent.stderr().contains("the disk is full"),
        "{}",
        agent.stderr()
    );
    server.check();
}

// T28: an untrusted run is confined whatever its pool does otherwise.
#[test]
fn an_untrusted_run_is_confined_on_an_agent_that_is_not() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let place = Place::new();
    let _agent = place.agent(&server, "lenient", "host");
    std::fs::write(place.path("home/secret"), "of the house").unwrap();
    place.give("home/secret");
    let secret = place.path("home/secret");
    let secret = secret.display();
    let step = format!("cat {secret} && echo READ; echo \"$OF_THE_HOUSE\"");
    let words = enforced(&person, "lenient");
    assert!(says(&words, "host"), "{words:?}");
    assert!(says(&words, "untrusted:strict"), "{words:?}");
    assert!(says(&words, "untrusted:no-new-privs"), "{words:?}");
    let trusted = printed(&person, &run_of(&step));
    assert!(says(&trusted, "of the houseREAD"), "{trusted:?}");
    assert!(says(&trusted, "passed on"), "{trusted:?}");
    let mut body = run_of(&step);
    body["trust"] = json!("untrusted");
    let untrusted = printed(&person, &body);
    // Where nothing can be enforced the job is not even begun.
    let read = untrusted.iter().any(|it| it.ends_with("READ"));
    assert!(!read, "{untrusted:?}");
    assert!(!says(&untrusted, "passed on"), "{untrusted:?}");
    server.check();
}

// T2, D7: a job of the agent's own user does not get at the agent or its shim.
#[test]
fn a_job_of_the_same_user_does_not_get_at_the_agent() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let place = Place::new();
    let agent = place.agent(&server, "guarded", "host");
    let words = enforced(&person, "guarded");
    let seen = printed(&person, &run_of(&place.attacks("guarded", &agent)));
    for (word, never) in [
        (
            "private-state",
            &["READ-LOCK", "READ-NOTE", "WROTE-STATE"][..],
        ),
        ("no-tracing", &["READ-ENVIRON"]),
        ("no-signals", &["SIGNALED"]),
    ] {
        let done = never.iter().any(|line| says(&seen, line));
        assert!(!(says(&words, word) && done), "{word}: {words:?} {seen:?}");
    }
    println!("enforced: {}", words.join(" "));
    assert!(says(&seen, "at-home"), "tools work as by hand: {seen:?}");
    if place.user.is_some() {
        assert!(says(&words, "no-tracing"), "{words:?}");
        // What hides the folder hides the token beside it.
        let token = says(&seen, "READ-TOKEN");
        assert!(!(says(&words, "private-state") && token), "{seen:?}");
    }
    assert!(agent.is_running());
    drop(agent);
    // Where nothing is asked for, nothing is enforced: the attacks are real.
    let agent = place.agent(&server, "open", "open");
    assert!(says(&enforced(&person, "open"), "open"));
    let seen = printed(&person, &run_of(&place.attacks("open", &agent)));
    for line in [
        "READ-LOCK",
        "READ-NOTE",
        "READ-TOKEN",
        "SIGNALED",
        "at-home",
    ] {
        assert!(says(&seen, line), "{line}: {seen:?}");
    }
    server.check();
}
