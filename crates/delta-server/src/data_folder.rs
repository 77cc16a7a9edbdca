//! The data folder: made private, and locked by the one server that uses it. Beside it, the folder
//! of logs and artifacts, which servers may share.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use crate::objects::Objects;
use crate::{Config, Purpose, StartError, StoreChoice};

/// Holds the folder for as long as it lives.
#[derive(Debug)]
pub struct DataLock {
    _file: File,
}

/// Makes the folder if need be, for this user alone, and locks it.
pub fn lock(config: &Config) -> Result<DataLock, StartError> {
    let data = &config.data;
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
                data: data.clone(),
                pid: pid.trim().to_owned(),
            });
        }
        Err(errno) => return Err(bad(&path, errno.into())),
    }
    let pid = format!("{}\n", std::process::id());
    let written = file
        .set_len(0)
        .and_then(|()| file.write_all(pid.as_bytes()));
    // Whose it is helps people only: a disk without room can be looked at.
    match config.purpose {
        Purpose::Serve => written.map_err(|source| bad(&path, source))?,
        Purpose::Look => drop(written),
    }
    Ok(DataLock { _file: file })
}

/// Opens the folder of logs and artifacts. It may be shared, so it is outside the lock.
pub fn objects(config: &Config) -> Result<Objects, StartError> {
    let several = matches!(config.store, StoreChoice::Postgres(_)) && config.listen.is_some();
    if several && config.objects.is_none() {
        tracing::warn!(
            "logs and artifacts are kept in this server's own folder: another server on the same \
             database cannot show or continue them; give all of them one shared folder (--objects)"
        );
    }
    let folder = config.objects.clone();
    let folder = folder.unwrap_or_else(|| config.data.join("objects"));
    let opened = match config.purpose {
        Purpose::Serve => Objects::open(folder.clone()),
        Purpose::Look => Objects::open_to_look(folder.clone()),
    };
    opened.map_err(|source| bad(&folder, source))
}

fn bad(path: &Path, source: io::Error) -> StartError {
    StartError::Data {
        path: path.to_owned(),
        source,
    }
}
