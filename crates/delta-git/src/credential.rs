//! How git gets a credential: from memory without a name, for one process family, for one server.
//!
//! The secret lies in a sealed file in memory that git finds at descriptor 3, and its children with
//! it. It is in no argument, no environment, no URL, no file system and no configuration, and gone
//! when the last of them is. Who wants to read it needs the right to trace git.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use delta_wire::Secret;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::address::{Address, Protocol};

/// What most services take as the user of a token.
const USUAL_USER: &str = "x-access-token";

/// Answers git's question with what is at descriptor 3, each time from its beginning.
const HELPER: &str = r#"!f() { case "$1" in get) exec cat /proc/self/fd/3 ;; esac; }; f"#;

/// What a repository is fetched with.
#[derive(Debug, Clone)]
pub enum Credential {
    Token {
        username: Option<String>,
        token: Secret,
    },
    /// `known_hosts` are the only host keys that are believed.
    SshKey { key: Secret, known_hosts: String },
}

/// Why a credential cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UnusableCredential {
    #[error("it is neither a token on a line of its own nor a private key")]
    Unreadable,
    #[error("it is a token, and the repository is reached by ssh, which takes a key")]
    KeyWanted,
    #[error("it is an ssh key, and the repository is not reached by ssh")]
    TokenWanted,
    #[error("its key comes with no host key, and an unknown host is not believed")]
    NoKnownHosts,
    #[error("it cannot be handed to git: {0}")]
    Io(#[from] io::Error),
}

/// A credential on its way to git.
pub struct Loan {
    /// Becomes descriptor 3 of git.
    pub file: File,
    pub config: Vec<(String, String)>,
    pub env: Vec<(&'static str, String)>,
}

impl Credential {
    /// What the text of a secret means: a private key with the lines of its known hosts after it; a
    /// user's name and a token on two lines; or a token alone.
    pub fn from_secret(text: &Secret) -> Result<Credential, UnusableCredential> {
        let text = text.expose();
        if let Some(end) = text.find("-----END ") {
            let rest = text[end..].find('\n').map_or(text.len(), |line| end + line);
            if !text.trim_start().starts_with("-----BEGIN ") {
                return Err(UnusableCredential::Unreadable);
            }
            return Ok(Credential::SshKey {
                key: Secret::new(format!("{}\n", text[..rest].trim())),
                known_hosts: format!("{}\n", text[rest..].trim()),
            });
        }
        let lines: Vec<&str> = text.trim().lines().map(str::trim).collect();
        let plain = |line: &&str| !line.is_empty() && !line.contains(char::is_control);
        if !lines.iter().all(plain) {
            return Err(UnusableCredential::Unreadable);
        }
        match lines[..] {
            [token] => Ok(Credential::Token {
                username: None,
                token: Secret::new(token),
            }),
            [user, token] => Ok(Credential::Token {
                username: Some(user.to_owned()),
                token: Secret::new(token),
            }),
            _ => Err(UnusableCredential::Unreadable),
        }
    }

    /// The user and the token, where it is one.
    pub fn basic(&self) -> Option<(&str, &Secret)> {
        match self {
            Credential::Token { username, token } => {
                Some((username.as_deref().unwrap_or(USUAL_USER), token))
            }
            Credential::SshKey { .. } => None,
        }
    }

    /// Lays it out for git. `folder` is private and gets what is no secret.
    pub fn lend(&self, address: &Address, folder: &Path) -> Result<Loan, UnusableCredential> {
        match (self, address.protocol) {
            (Credential::Token { .. }, Protocol::Ssh) => Err(UnusableCredential::KeyWanted),
            (Credential::SshKey { .. }, Protocol::Https | Protocol::Http | Protocol::File) => {
                Err(UnusableCredential::TokenWanted)
            }
            (Credential::Token { username, token }, _) => {
                let username = username.as_deref().unwrap_or(USUAL_USER);
                let token = token.expose();
                if username.contains(['\n', '\0']) || token.contains(['\n', '\0']) {
                    return Err(UnusableCredential::Unreadable);
                }
                let answer = format!("username={username}\npassword={token}\n");
                let helper = format!("credential.{}.helper", address.server());
                Ok(Loan {
                    file: in_memory(&answer)?,
                    config: vec![(helper, HELPER.to_owned())],
                    env: Vec::new(),
                })
            }
            (Credential::SshKey { key, known_hosts }, Protocol::Ssh) => {
                if known_hosts.trim().is_empty() {
                    return Err(UnusableCredential::NoKnownHosts);
                }
                let hosts = folder.join("known_hosts");
                std::fs::write(&hosts, known_hosts)?;
                Ok(Loan {
                    file: in_memory(key.expose())?,
                    config: Vec::new(),
                    env: vec![("GIT_SSH_COMMAND", ssh_command(&hosts)?)],
                })
            }
        }
    }
}

/// The shell's parent is git, which has the key at its descriptor 3; ssh itself closes its own.
fn ssh_command(known_hosts: &Path) -> io::Result<String> {
    let hosts = known_hosts
        .to_str()
        .filter(|text| !text.contains(['"', '\'', '\\', '$', '\n']));
    let Some(hosts) = hosts else {
        return Err(io::Error::other("ssh cannot be told of a path like that"));
    };
    // ssh puts words of its own for a percent sign.
    let hosts = hosts.replace('%', "%%");
    let options: String = [
        "BatchMode=yes",
        "IdentitiesOnly=yes",
        "IdentityAgent=none",
        "PreferredAuthentications=publickey",
        "StrictHostKeyChecking=yes",
        "UpdateHostKeys=no",
        "VerifyHostKeyDNS=no",
        "GlobalKnownHostsFile=/dev/null",
        "PermitLocalCommand=no",
        "ForwardAgent=no",
        "ConnectTimeout=30",
        // A minute without a word.
        "ServerAliveInterval=15",
        "ServerAliveCountMax=4",
    ]
    .iter()
    .map(|it| format!(" -o {it}"))
    .collect();
    Ok(format!(
        r#"ssh -F /dev/null -i /proc/$PPID/fd/3{options} -o 'UserKnownHostsFile="{hosts}"'"#
    ))
}

/// A file that only memory knows, and nobody can change any more.
fn in_memory(text: &str) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(memfd_create("credential", flags)?);
    // ssh looks at a key's rights.
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(text.as_bytes())?;
    fcntl_add_seals(
        &file,
        SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE,
    )?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Credential, UnusableCredential> {
        Credential::from_secret(&Secret::new(text))
    }

    #[test]
    fn a_secret_is_a_token_a_user_with_a_token_or_a_key_with_its_hosts() {
        let Ok(Credential::Token { username, token }) = read("abc\n") else {
            panic!("a token");
        };
        assert_eq!((username, token.expose()), (None, "abc"));
        let Ok(Credential::Token { username, token }) = read("me\nabc") else {
            panic!("a token");
        };
        assert_eq!((username.as_deref(), token.expose()), (Some("me"), "abc"));
        let key = "-----BEGIN OPENSSH PRIVATE KEY-----\nAA==\n-----END OPENSSH PRIVATE KEY-----";
        let Ok(Credential::SshKey { key, known_hosts }) = read(&format!("{key}\nhost ssh-rsa A"))
        else {
            panic!("a key");
        };
        assert!(key.expose().ends_with("PRIVATE KEY-----\n"));
        assert_eq!(known_hosts, "host ssh-rsa A\n");
        for odd in ["", "\n", "a\nb\nc", "x -----END y"] {
            assert!(read(odd).is_err(), "{odd:?}");
        }
    }

    #[test]
    fn a_credential_does_not_show_and_fits_its_protocol_only() {
        let token = read("canary").expect("a token");
        assert!(!format!("{token:?}").contains("canary"));
        let folder = tempfile::tempdir().expect("a folder");
        let all = crate::address::Protocols::default();
        let lend = |url| token.lend(&Address::parse(url, all).expect(url), folder.path());
        assert!(matches!(
            lend("git@host:a"),
            Err(UnusableCredential::KeyWanted)
        ));
        let loan = lend("https://host:1/a").expect("a loan");
        assert_eq!(loan.config[0].0, "credential.https://host:1.helper");
        assert!(!loan.config[0].1.contains("canary") && loan.env.is_empty());
        assert_eq!(
            std::fs::read_dir(folder.path()).expect("a folder").count(),
            0
        );
    }
}
