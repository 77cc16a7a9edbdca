//! Certificates made by the `openssl` command, as somebody who has an authority already has them.

use std::path::{Path, PathBuf};
use std::process::Command;

pub struct Authority {
    dir: tempfile::TempDir,
}

/// A certificate and its key, both in PEM.
#[derive(Clone)]
pub struct Made {
    pub cert: String,
    pub key: String,
}

impl Made {
    pub fn write(&self, cert: &Path, key: &Path) {
        std::fs::write(cert, &self.cert).unwrap();
        std::fs::write(key, &self.key).unwrap();
    }

    pub fn identity(&self) -> reqwest::Identity {
        let both = format!("{}{}", self.cert, self.key);
        reqwest::Identity::from_pem(both.as_bytes()).unwrap()
    }
}

const CURVE: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";

fn openssl(dir: &Path, line: &str) {
    let mut command = Command::new("openssl");
    let output = command.args(line.split_whitespace()).current_dir(dir);
    let output = output.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "openssl {line}: {said}");
}

impl Authority {
    pub fn new() -> Authority {
        let dir = tempfile::tempdir().unwrap();
        let line = format!(
            "req -x509 {CURVE} -keyout ca.key -out ca.pem -days 2 -subj /CN=test-authority \
             -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign"
        );
        openssl(dir.path(), &line);
        Authority { dir }
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    pub fn pem(&self) -> String {
        std::fs::read_to_string(self.path()).unwrap()
    }

    pub fn root(&self) -> reqwest::Certificate {
        reqwest::Certificate::from_pem(self.pem().as_bytes()).unwrap()
    }

    /// A certificate with this common name and these extensions.
    pub fn issue(&self, common: &str, extensions: &str, days: i32) -> Made {
        let dir = self.dir.path();
        std::fs::write(dir.join("extensions"), extensions).unwrap();
        let request = format!("req -new {CURVE} -keyout a.key -out a.csr -subj /CN={common}");
        openssl(dir, &request);
        let sign = format!(
            "x509 -req -in a.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days {days} \
             -extfile extensions -out a.pem"
        );
        openssl(dir, &sign);
        let read = |name| std::fs::read_to_string(dir.join(name)).unwrap();
        Made {
            cert: read("a.pem"),
            key: read("a.key"),
        }
    }

    pub fn server(&self) -> Made {
        let extensions = "extendedKeyUsage=serverAuth\nsubjectAltName=DNS:localhost\n";
        self.issue("localhost", extensions, 2)
    }

    /// For an agent, with these alternative names.
    pub fn agent(&self, common: &str, names: &str) -> Made {
        let names = match names {
            "" => String::new(),
            names => format!("subjectAltName={names}\n"),
        };
        let extensions = format!("basicConstraints=CA:FALSE\nextendedKeyUsage=clientAuth\n{names}");
        self.issue(common, &extensions, 2)
    }
}
