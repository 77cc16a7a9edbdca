//! Bad input: a clear answer each, no state change, no panic, no secret told.

use serde_json::Value;

use crate::harness::http::Answer;
use crate::harness::{Grant, Options, Person, Runner, Server, jobs, secret_in};

mod messages;
mod people;
mod rim;

/// A server with a held lease that nobody but its holder may touch.
struct Stage {
    server: Server,
    person: Person,
    one: Runner,
    two: Runner,
    grant: Grant,
}

impl Stage {
    fn set() -> Stage {
        let options = Options::patient()
            .flag("lease-ttl", "2m")
            .flag("ack-timeout", "2m");
        let server = Server::start(options);
        let person = server.person();
        let (one, two) = (server.runner("one"), server.runner("two"));
        person.create(&jobs(1));
        let grant = one.take();
        Stage {
            server,
            person,
            one,
            two,
            grant,
        }
    }

    /// Everything that anybody can see of the run and of how many there are.
    fn picture(&self) -> (Value, Value, Vec<Value>, usize) {
        (
            self.person.run(&self.grant.run),
            self.person.job(&self.grant.job),
            self.person.events(&self.grant.run),
            self.person.run_ids().len(),
        )
    }

    /// Does something that must change nothing.
    #[track_caller]
    fn nothing_changes<T>(&self, what: &str, act: impl FnOnce() -> T) -> T {
        let before = self.picture();
        let done = act();
        assert_eq!(before, self.picture(), "{what} changed something");
        done
    }

    #[track_caller]
    fn end(self) {
        self.one.succeed(&self.grant);
        assert_eq!(
            self.person.until_over(&self.grant.run)["outcome"],
            "SUCCESS"
        );
        self.server.check();
    }
}

/// A refusal in the one error shape, naming the field where it should.
#[track_caller]
fn refused(answer: &Answer, status: u16, field: Option<&str>) {
    assert_eq!(answer.status, status, "{}", answer.text);
    let code = answer.body["code"].as_str();
    assert!(
        code.is_some_and(|code| !code.is_empty()),
        "no code: {}",
        answer.text
    );
    assert!(
        answer.body["message"].is_string(),
        "no message: {}",
        answer.text
    );
    assert!(
        answer.body["retryable"].is_boolean(),
        "no retryable: {}",
        answer.text
    );
    if let Some(field) = field {
        assert_eq!(answer.word("field"), field, "{}", answer.text);
    }
    assert_eq!(secret_in(&answer.text), None, "a secret in a refusal");
}

/// A copy with one field changed; the word `absent` takes it away.
fn with(mut message: Value, field: &str, value: &str) -> Value {
    match value {
        "absent" => {
            message.as_object_mut().unwrap().remove(field);
        }
        _ => message[field] = serde_json::from_str(value).unwrap(),
    }
    message
}
