//! Services of a job: containers beside it, reachable by name, and how it is known that one is
//! ready for the first step.

use serde::Serialize;

use super::job_io::{arguments, image, object};
use super::{MAX_STEP_BYTES, Strangers, as_map, environment};
use crate::fields::Node;
use crate::invalid::{Invalid, Problems};
use crate::seconds::Seconds;

/// How long a service may take to be ready, where nobody says: a database that makes its files.
pub const READY_TIMEOUT: Seconds = Seconds::from_secs(60);
/// The longest of these times: what takes longer is work, and belongs into a step.
pub const MAX_READY_TIMEOUT: Seconds = Seconds::from_secs(3600);
/// Between two looks, where nobody says.
pub const READY_EVERY: Seconds = Seconds::from_secs(1);
/// The shortest and the longest time between two looks: each may start a process.
pub const READY_PAUSES: std::ops::RangeInclusive<Seconds> =
    Seconds::from_millis(100)..=Seconds::from_secs(60);

/// A container beside the job, reachable by its name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServiceSpec {
    pub name: String,
    pub image: String,
    #[serde(serialize_with = "as_map", skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<(String, String)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Absent: the steps do not wait for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<ReadySpec>,
}

/// When a service is ready, and how long that may take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReadySpec {
    /// A script for a shell in its container that ends well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// It listens on this port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    #[serde(rename = "timeout_seconds")]
    pub timeout: Seconds,
    #[serde(rename = "every_seconds")]
    pub every: Seconds,
}

pub(super) fn service(node: Node<'_>, strangers: Strangers) -> Result<ServiceSpec, Problems> {
    object(node, strangers, |f, p| {
        let name = p.note(f.must("name", host_name));
        let image = p.note(f.must("image", image));
        let env = p.note_all(f.may_all("env", environment));
        let command = p.note_all(f.may_all("command", arguments));
        let ready = p.note_all(f.may_all("ready", |it| ready(it, strangers)));
        Some(ServiceSpec {
            name: name?,
            image: image?,
            env: env?.unwrap_or_default(),
            command: command?,
            ready: ready?,
        })
    })
}

fn host_name(node: Node<'_>) -> Result<String, Invalid> {
    let name = node.text(63)?;
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.chars().all(fits) && !name.starts_with('-') {
        Ok(name)
    } else {
        Err(Invalid::here(
            "is a host name: small letters, digits and `-`",
        ))
    }
}

fn ready(node: Node<'_>, strangers: Strangers) -> Result<ReadySpec, Problems> {
    object(node, strangers, |f, p| {
        let run = p.note(f.may("run", script));
        let port = p.note(f.may("port", |it| it.whole(1, u16::MAX.into())));
        let within = |it: Node<'_>, range: std::ops::RangeInclusive<Seconds>| {
            let seconds = it.seconds()?;
            if range.contains(&seconds) {
                Ok(seconds)
            } else {
                let (from, to) = (range.start(), range.end());
                Err(Invalid::here(format!(
                    "must be from {from} to {to} seconds"
                )))
            }
        };
        let most = Seconds::from_millis(100)..=MAX_READY_TIMEOUT;
        let timeout = p.note(f.may("timeout_seconds", |it| within(it, most)));
        let every = p.note(f.may("every_seconds", |it| within(it, READY_PAUSES)));
        let (run, port) = (run?, port?);
        if run.is_some() == port.is_some() {
            let words = "says how it is known: either `run`, a script in its container that \
                         ends well, or `port`, on which it listens";
            p.push(Invalid::here(words));
        }
        Some(ReadySpec {
            run,
            port: port.and_then(|port| u16::try_from(port).ok()),
            timeout: timeout?.unwrap_or(READY_TIMEOUT),
            every: every?.unwrap_or(READY_EVERY),
        })
    })
}

fn script(node: Node<'_>) -> Result<String, Invalid> {
    let script = node.string()?;
    if script.trim().is_empty() || script.contains('\0') {
        return Err(Invalid::here("is no script"));
    }
    if script.len() > MAX_STEP_BYTES {
        Err(Invalid::here(format!(
            "has more than {MAX_STEP_BYTES} bytes"
        )))
    } else {
        Ok(script)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JobSpec;

    fn read(ready: &str) -> Result<ReadySpec, String> {
        let text = format!(
            r#"{{"steps":["a"],"image":"x","container":{{"services":[
               {{"name":"db","image":"x","ready":{ready}}}]}}}}"#
        );
        let spec = JobSpec::parse(text.as_bytes()).map_err(|it| it.to_string())?;
        let service = spec.container.unwrap().services.remove(0);
        Ok(service.ready.unwrap())
    }

    #[test]
    fn a_service_is_ready_by_one_of_two_signs() {
        let by_port = read(r#"{"port": 5432}"#).unwrap();
        assert_eq!((by_port.port, by_port.run), (Some(5432), None));
        assert_eq!(
            (by_port.timeout, by_port.every),
            (READY_TIMEOUT, READY_EVERY)
        );
        let by_run = read(r#"{"run": "pg_isready", "timeout_seconds": 30, "every_seconds": 0.5}"#);
        assert_eq!(by_run.unwrap().every, Seconds::from_millis(500));
        for (ready, words) in [
            ("{}", "ready: says how it is known"),
            (r#"{"port": 1, "run": "x"}"#, "ready: says how it is known"),
            (
                r#"{"port": 0}"#,
                "ready.port: must be a whole number from 1 to 65535",
            ),
            (r#"{"run": " "}"#, "ready.run: is no script"),
            (
                r#"{"port": 1, "every_seconds": 0}"#,
                "ready.every_seconds: must be from 0.1 to 60",
            ),
            (
                r#"{"port": 1, "timeout_seconds": 4000}"#,
                "ready.timeout_seconds: must be from",
            ),
        ] {
            let said = read(ready).unwrap_err();
            assert!(said.contains(words), "{ready}: {said}");
        }
    }
}
