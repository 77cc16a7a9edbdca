//! What a shim is told that no file may hold: it comes in memory that has no name, and is there
//! once.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use delta_wire::Secret;
use rustix::fs::MemfdFlags;
use zeroize::Zeroizing;

/// What a shim is told that no file may hold. It has no `Debug`.
#[derive(Default)]
pub struct Handed {
    /// Variables of the steps.
    pub env: Vec<(String, Secret)>,
    /// Every value that must not be seen in the log.
    pub masked: Vec<Secret>,
}

impl Handed {
    pub fn is_empty(&self) -> bool {
        self.env.is_empty() && self.masked.is_empty()
    }

    /// Puts it into a file that has no name and no disk, to be inherited by the shim.
    pub fn to_memory(&self) -> io::Result<File> {
        let env = self
            .env
            .iter()
            .map(|(name, it)| (name.as_str(), it.expose()));
        let env: Vec<(&str, &str)> = env.collect();
        let masked: Vec<&str> = self.masked.iter().map(Secret::expose).collect();
        let bytes = Zeroizing::new(serde_json::to_vec(&(env, masked))?);
        let file = rustix::fs::memfd_create("delta-ci", MemfdFlags::CLOEXEC)?;
        let mut file = File::from(file);
        file.write_all(&bytes)?;
        Ok(file)
    }

    /// Takes it out of there: nothing is left for whoever else gets the file.
    pub(crate) fn take_from_memory(file: &File) -> io::Result<Handed> {
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(0);
        let mut bytes = Zeroizing::new(vec![0; length]);
        file.read_exact_at(&mut bytes, 0)?;
        file.set_len(0)?;
        let read: (Vec<(String, String)>, Vec<String>) = serde_json::from_slice(&bytes)?;
        let (env, masked) = read;
        let env = env
            .into_iter()
            .map(|(name, value)| (name, Secret::new(value)));
        Ok(Handed {
            env: env.collect(),
            masked: masked.into_iter().map(Secret::new).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_handed_over_is_there_once() {
        let handed = Handed {
            env: vec![("TOKEN".to_owned(), Secret::new("canary\n'"))],
            masked: vec![Secret::new("canary\n'"), Secret::new("other")],
        };
        let file = handed.to_memory().expect("memory");
        let taken = Handed::take_from_memory(&file).expect("taken");
        assert!(taken.env == handed.env && taken.masked == handed.masked);
        assert_eq!(file.metadata().expect("a file").len(), 0);
        assert!(Handed::take_from_memory(&file).is_err(), "only once");
    }
}
