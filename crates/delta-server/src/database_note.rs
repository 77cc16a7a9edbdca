//! A note beside the database that says which one it is, so that an empty one in its place is not
//! taken for a fresh installation (ADR 0024).
//!
//! The note is written when the database is whole and on disk, and never before: a first start that
//! is killed at any point leaves a folder without it, and goes on the next time. It names each
//! engine's database apart, since a folder may move from one to the other and keep its objects.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use delta_core::RunId;
use delta_store::Store;

use crate::objects::Objects;
use crate::{Config, Purpose, StartError, StoreChoice};

/// Its name in the data folder.
pub const FILE: &str = "database.id";

/// What a line of the note begins with, for a database that is a file in the folder.
const SQLITE: &str = "sqlite";

/// Bytes of it that are read: a line for each engine.
const MAX_BYTES: u64 = 4096;

/// What is known of the databases of a data folder before one is opened.
pub struct Witness {
    file: PathBuf,
    engine: &'static str,
    /// Lines of the note, other engines' included.
    noted: Vec<(String, i64)>,
    accept: bool,
    purpose: Purpose,
    /// Runs that left something in the folder of objects, and that no database of another engine
    /// explains.
    unexplained: bool,
}

/// Why a database is not taken for this folder's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatabaseLost {
    #[error("the database is gone, and what it was about is still here")]
    Gone,
    #[error("the database is empty, and it is not the one that was here before")]
    Replaced,
    #[error(
        "the database is empty, and there are logs and artifacts of runs that it does not know"
    )]
    Unknown,
}

impl Witness {
    /// Looks at the folder before anything in it is opened or made: a database that should be there
    /// and is not is not made anew.
    pub fn read(config: &Config, objects: &Objects) -> Result<Option<Witness>, StartError> {
        let engine = match config.store {
            StoreChoice::Sqlite => SQLITE,
            StoreChoice::Postgres(_) => "postgres",
            StoreChoice::Memory => return Ok(None),
        };
        let file = config.data.join(FILE);
        let bad = |source| StartError::Data {
            path: file.clone(),
            source,
        };
        let noted = read(&file).map_err(bad)?;
        let left = objects.runs().map_err(bad)?;
        let witness = Witness {
            unexplained: !left.is_empty() && !explained(config, &noted, &left),
            noted,
            engine,
            accept: config.accept_empty,
            purpose: config.purpose,
            file: file.clone(),
        };
        if config.store == StoreChoice::Sqlite && !config.accept_empty {
            let database = config.data.join(delta_store::sqlite::FILE);
            let empty = database.metadata().map_or(true, |found| found.len() == 0);
            // Before there was such a note, only what runs left could tell.
            if empty && (witness.known().is_some() || witness.unexplained) {
                return Err(lost(config, DatabaseLost::Gone));
            }
        }
        Ok(Some(witness))
    }

    /// Compares the database that was opened with the note, and writes the note, unless whoever
    /// started this only looks.
    pub fn meet(mut self, config: &Config, store: &mut dyn Store) -> Result<(), StartError> {
        let identity = store.identity()?;
        match self.known() {
            Some(known) if known == identity => return Ok(()),
            Some(_) if !self.accept && store.is_unused()? => {
                return Err(lost(config, DatabaseLost::Replaced));
            }
            Some(_) => tracing::warn!(
                "the database is another one than before; what runs of the other one left in the \
                 folder of logs and artifacts is not shown"
            ),
            // A first start that was killed has left nothing of runs: nobody had been served.
            None if !self.accept && self.unexplained && store.is_unused()? => {
                return Err(lost(config, DatabaseLost::Unknown));
            }
            None => {}
        }
        if self.purpose == Purpose::Look {
            return Ok(());
        }
        self.noted.retain(|(engine, _)| engine != self.engine);
        self.noted.push((self.engine.to_owned(), identity));
        write(&self.file, &self.noted).map_err(|source| StartError::Data {
            path: self.file.clone(),
            source,
        })
    }

    fn known(&self) -> Option<i64> {
        let mut own = self.noted.iter().filter(|(name, _)| name == self.engine);
        own.next().map(|(_, identity)| *identity)
    }
}

fn lost(config: &Config, why: DatabaseLost) -> StartError {
    StartError::Lost {
        data: config.data.clone(),
        why,
    }
}

/// Whether what runs left may be that of the file this server used before it moved to PostgreSQL:
/// the note says so, or, of a folder without one, the file knows a run of them. One is enough: what
/// the file has deleted may lie there for a while.
fn explained(config: &Config, noted: &[(String, i64)], left: &[RunId]) -> bool {
    let moved = matches!(config.store, StoreChoice::Postgres(_));
    let before = || noted.iter().any(|(engine, _)| engine == SQLITE);
    moved && (before() || delta_store::sqlite::knows_one_of(&config.data, left))
}

fn read(file: &Path) -> io::Result<Vec<(String, i64)>> {
    let mut text = String::new();
    match File::open(file) {
        Ok(file) => file.take(MAX_BYTES).read_to_string(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let line = |line: &str| {
        let (engine, identity) = line.split_once(' ')?;
        Some((engine.to_owned(), identity.trim().parse().ok()?))
    };
    let lines: Option<Vec<_>> = text.lines().map(line).collect();
    let broken = || io::Error::other("it is no note of a database; remove it if nothing is amiss");
    lines.ok_or_else(broken)
}

/// Whole or not at all, and on disk.
fn write(file: &Path, noted: &[(String, i64)]) -> io::Result<()> {
    let lines = noted.iter().map(|(engine, id)| format!("{engine} {id}\n"));
    let text: String = lines.collect();
    let fresh = file.with_extension("new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut written = options.open(&fresh)?;
    written.write_all(text.as_bytes())?;
    written.sync_all()?;
    std::fs::rename(&fresh, file)?;
    File::open(file.parent().unwrap_or(Path::new(".")))?.sync_all()
}
