//! The data folder: made private, and locked by the one server that uses it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::StartError;

/// Holds the folder for as long as it lives.
#[derive(Debug)]
pub struct DataLock {
    _file: File,
}

/// Makes the folder if need be, for this user alone, and locks it.
pub fn lock(data: &Path) -> Result<DataLock, StartError> {
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(data);
    made.map_err(|source| bad(data, source))?;
    let path = data.join("lock");
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(|source| bad(&path, source))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut pid = String::new();
            let _ = file.read_to_string(&mut pid);
            return Err(StartError::Locked {
                data: data.to_owned(),
                pid: pid.trim().to_owned(),
            });
        }
        Err(errno) => return Err(bad(&path, errno.into())),
    }
    let pid = format!("{}\n", std::process::id());
    let written = file
        .set_len(0)
        .and_then(|()| file.write_all(pid.as_bytes()));
    written.map_err(|source| bad(&path, source))?;
    Ok(DataLock { _file: file })
}

/// Where logs and artifacts are kept.
pub fn objects(data: &Path) -> PathBuf {
    data.join("objects")
}

fn bad(path: &Path, source: io::Error) -> StartError {
    StartError::Data {
        path: path.to_owned(),
        source,
    }
}
