//! Who this agent is to the server: the id it was given, and the secret that proves it is the same
//! one when many agents share a credential. Kept in the state folder; never shown.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use delta_wire::agent::process_header::Shown;
use serde::{Deserialize, Serialize};

use crate::backoff::entropy;

/// What the server said at the first registration.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentIdentity {
    pub agent_id: String,
    #[serde(default)]
    pub resume_secret: String,
}

impl std::fmt::Debug for AgentIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AgentIdentity({})", self.agent_id)
    }
}

/// Where it is kept.
#[derive(Debug)]
pub struct IdentityFile {
    path: PathBuf,
    known: Mutex<AgentIdentity>,
}

impl IdentityFile {
    /// Reads what is there. A file that cannot be read is as good as none: the agent is a new one.
    pub fn open(path: PathBuf) -> IdentityFile {
        let known = fs::read(&path).ok();
        let known = known.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        IdentityFile {
            path,
            known: Mutex::new(known.unwrap_or_default()),
        }
    }

    pub fn known(&self) -> AgentIdentity {
        self.known.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Keeps it, on disk before it is used.
    pub fn keep(&self, known: AgentIdentity) -> io::Result<()> {
        let mut current = self.known.lock().unwrap_or_else(|e| e.into_inner());
        if *current == known {
            return Ok(());
        }
        let written = self.path.with_extension("new");
        let mut options = OpenOptions::new();
        options.create(true).write(true).truncate(true).mode(0o600);
        let mut file = options.open(&written)?;
        file.write_all(&serde_json::to_vec(&known)?)?;
        file.sync_all()?;
        fs::rename(&written, &self.path)?;
        *current = known;
        Ok(())
    }
}

/// This process of the agent: sessions come and go, and it stays the same one.
#[derive(Clone, Debug)]
pub struct Process {
    /// Random, so that a restart is told from two agents with one identity.
    pub instance: Arc<str>,
    pub identity: Arc<IdentityFile>,
}

impl Process {
    pub fn new(identity: IdentityFile) -> Process {
        Process {
            instance: format!("{:016x}{:016x}", entropy(), entropy()).into(),
            identity: Arc::new(identity),
        }
    }

    /// What its requests show of it (I23).
    pub fn shown(&self) -> Shown {
        let secret = self.identity.known().resume_secret;
        Shown {
            process: self.instance.to_string(),
            secret: (!secret.is_empty()).then_some(secret),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn an_identity_outlives_its_process_and_is_nobody_else_s() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.json");
        let file = IdentityFile::open(path.clone());
        assert_eq!(file.known(), AgentIdentity::default());
        let known = AgentIdentity {
            agent_id: "agt_1".into(),
            resume_secret: "canary".into(),
        };
        file.keep(known.clone()).unwrap();
        assert_eq!(IdentityFile::open(path.clone()).known(), known);
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert!(!format!("{known:?}").contains("canary"));
    }
}
