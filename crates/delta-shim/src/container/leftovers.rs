//! Containers and networks that nobody goes on with, found by their labels and removed.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use super::order::{AGENT_LABEL, ATTEMPT_LABEL, NAME_PREFIX};
use super::runtime::{Kind, Runtime};

/// How long one command may take: a daemon that is slow to remove, not one that hangs.
const COMMAND_TIME: Duration = Duration::from_secs(30);

/// Rounds of looking and removing. A container that was just being made is found in the next one.
const ROUNDS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);

/// What is looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Containers,
    Networks,
}

/// Removes everything with this attempt's label. True when nothing is left.
pub async fn clear_attempt(runtime: &Runtime, attempt: &str) -> bool {
    let filter = format!("label={ATTEMPT_LABEL}={attempt}");
    for round in 0..ROUNDS {
        let containers = listed(runtime, What::Containers, &filter).await;
        let networks = listed(runtime, What::Networks, &filter).await;
        let (Some(containers), Some(networks)) = (containers, networks) else {
            return false;
        };
        if containers.is_empty() && networks.is_empty() {
            return true;
        }
        if round > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        remove(runtime, &containers, &networks).await;
    }
    false
}

/// Removes what belongs to this agent and to none of the attempts that go on.
pub async fn clear_others(runtime: &Runtime, owner: &str, going_on: &[String]) {
    let filter = format!("label={AGENT_LABEL}={owner}");
    let stray = |lines: Vec<(String, String)>| -> Vec<String> {
        let strays = lines.into_iter().filter(|(_, it)| !going_on.contains(it));
        strays.map(|(id, _)| id).collect()
    };
    let containers = labelled(runtime, What::Containers, &filter)
        .await
        .map(stray);
    let networks = labelled(runtime, What::Networks, &filter).await.map(stray);
    let (containers, networks) = (containers.unwrap_or_default(), networks.unwrap_or_default());
    if !containers.is_empty() || !networks.is_empty() {
        let (count, nets) = (containers.len(), networks.len());
        tracing::info!(containers = count, networks = nets, "left behind: removed");
        remove(runtime, &containers, &networks).await;
    }
}

async fn remove(runtime: &Runtime, containers: &[String], networks: &[String]) {
    if !containers.is_empty() {
        let mut arguments = removal(runtime.kind);
        arguments.extend(containers.iter().cloned());
        said(runtime, &arguments).await;
    }
    if !networks.is_empty() {
        let words = ["network", "rm"].into_iter().map(str::to_owned);
        let arguments: Vec<String> = words.chain(networks.iter().cloned()).collect();
        said(runtime, &arguments).await;
    }
}

/// How containers are removed, running or not, with the volumes that are theirs alone.
pub fn removal(kind: Kind) -> Vec<String> {
    let words: &[&str] = match kind {
        Kind::Docker => &["rm", "--force", "--volumes"],
        // It would ask first, and wait ten seconds.
        Kind::Podman => &["rm", "--force", "--volumes", "--time", "0"],
    };
    words.iter().map(|word| (*word).to_owned()).collect()
}

async fn listed(runtime: &Runtime, what: What, filter: &str) -> Option<Vec<String>> {
    let lines = labelled(runtime, what, filter).await?;
    Some(lines.into_iter().map(|(id, _)| id).collect())
}

/// Ids with the label of their attempt; nothing when the daemon does not answer.
async fn labelled(runtime: &Runtime, what: What, filter: &str) -> Option<Vec<(String, String)>> {
    let format = format!("{{{{.ID}}}} {{{{.Label \"{ATTEMPT_LABEL}\"}}}}");
    let words = match what {
        What::Containers => ["ps", "--all", "--no-trunc", "--format", &format],
        // Podman shows their labels in a form of its own; their names say as much.
        What::Networks => ["network", "ls", "--no-trunc", "--format", "{{.Name}}"],
    };
    let words = words.into_iter().chain(["--filter", filter]);
    let arguments: Vec<String> = words.map(str::to_owned).collect();
    let text = said(runtime, &arguments).await?;
    let lines = text.lines().map(str::trim).filter_map(|line| match what {
        What::Containers => line.split_once(' '),
        What::Networks => Some((line, line.strip_prefix(NAME_PREFIX)?)),
    });
    let owned = |(id, label): (&str, &str)| (id.to_owned(), label.trim().to_owned());
    Some(lines.map(owned).collect())
}

/// What a command printed, when it succeeded.
async fn said(runtime: &Runtime, arguments: &[String]) -> Option<String> {
    let asked = Command::new(&runtime.program)
        .args(arguments)
        .env_clear()
        .envs(runtime.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = match tokio::time::timeout(COMMAND_TIME, asked).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => {
            tracing::warn!(%error, "the container program cannot be started");
            return None;
        }
        Err(_) => {
            tracing::warn!("the container program does not answer");
            return None;
        }
    };
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        tracing::warn!(why = why.trim(), "the container program failed");
        return None;
    }
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}
