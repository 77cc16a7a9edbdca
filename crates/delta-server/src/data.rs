//! The data folder: made private, and locked by the one server that uses it. Beside it, the folder
//! of logs and artifacts, which servers may share.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use crate::objects::Objects;
use crate::{Config, StartError, StoreChoice};

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
    Objects::open(folder.clone()).map_err(|source| bad(&folder, source))
}

fn bad(path: &Path, source: io::Error) -> StartError {
    StartError::Data {
        path: path.to_owned(),
        source,
    }
}
