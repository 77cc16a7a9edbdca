//! Opening the file: migrations, and bringing what is live back into memory.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use delta_core::{Millis, RunId, Text};
use rusqlite::Connection;

use super::cache::Cache;
use super::connection::{FILE, File, open_reader, open_writer};
use super::reader::SqliteReader;
use super::rows::columns;
use super::side_tables::SqliteSideTables;
use super::standings::Standings;
use super::{CACHED_ROWS, Gauges, SqliteStore, rows};
use crate::StoreError;
use crate::codec::{column, corrupt, row as json};
use crate::index::Index;
use crate::migrate::{self, Migration, Schema, migrate};
use crate::specs::{CACHED_SPEC_BYTES, Specs};

const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        sql: include_str!("../../migrations/sqlite/0001_tables.sql"),
    },
    Migration {
        version: 2,
        sql: include_str!("../../migrations/sqlite/0002_lists.sql"),
    },
    Migration {
        version: 3,
        sql: include_str!("../../migrations/sqlite/0003_credentials.sql"),
    },
    Migration {
        version: 4,
        sql: include_str!("../../migrations/sqlite/0004_agents.sql"),
    },
    Migration {
        version: 5,
        sql: include_str!("../../migrations/sqlite/0005_fewer_rows.sql"),
    },
    Migration {
        version: 6,
        sql: include_str!("../../migrations/sqlite/0006_results.sql"),
    },
    Migration {
        version: 7,
        sql: include_str!("../../migrations/sqlite/0007_secrets.sql"),
    },
    Migration {
        version: 8,
        sql: include_str!("../../migrations/sqlite/0008_functions.sql"),
    },
    Migration {
        version: 9,
        sql: include_str!("../../migrations/sqlite/0009_forges.sql"),
    },
    Migration {
        version: 10,
        sql: include_str!("../../migrations/sqlite/0010_reruns.sql"),
    },
    Migration {
        version: 11,
        sql: include_str!("../../migrations/sqlite/0011_groups.sql"),
    },
    Migration {
        version: 12,
        sql: include_str!("../../migrations/sqlite/0012_secrets_of_branches.sql"),
    },
    Migration {
        version: 13,
        sql: include_str!("../../migrations/sqlite/0013_events_in_their_order.sql"),
    },
    Migration {
        version: 14,
        sql: include_str!("../../migrations/sqlite/0014_identity.sql"),
    },
    Migration {
        version: 15,
        sql: include_str!("../../migrations/sqlite/0015_processes_of_agents.sql"),
    },
];

/// The store's three sides: the writer's, the one that reads, and the tables beside it.
pub type Sides = (SqliteStore, SqliteReader, SqliteSideTables);

/// Opens `DIR/delta-ci.db`, makes it where there is none, and brings it up to date. The caller
/// holds the folder's lock: the file has one writer.
pub fn open(dir: &Path) -> Result<Sides, StoreError> {
    open_with(dir, MIGRATIONS)
}

/// As [`open`], where the schema may be left as it is.
pub fn open_as(dir: &Path, schema: Schema) -> Result<Sides, StoreError> {
    if schema == Schema::AsItIs {
        let path = dir.join(FILE);
        let connection = open_reader(&path)?;
        let connection = &connection;
        migrate::check(&mut File { connection, path }, MIGRATIONS)?;
    }
    open(dir)
}

/// Whether the file in a folder, of whatever version, has one of these runs. Nothing is changed,
/// and a file that cannot be read has none.
pub fn knows_one_of(dir: &Path, runs: &[RunId]) -> bool {
    let path = dir.join(FILE);
    let has = |connection: &Connection, run: &RunId| {
        let sql = "SELECT 1 FROM runs WHERE run_id = ?1";
        let found = connection.query_row(sql, [column::run_bytes(*run)], |_| Ok(()));
        found.is_ok()
    };
    let connection = open_reader(&path);
    connection.is_ok_and(|connection| runs.iter().any(|run| has(&connection, run)))
}

fn open_with(dir: &Path, migrations: &[Migration]) -> Result<Sides, StoreError> {
    let path = dir.join(FILE);
    let connection = open_writer(&path)?;
    let mut file = File {
        connection: &connection,
        path: path.clone(),
    };
    migrate(&mut file, migrations)?;
    let gauges = Arc::new(Gauges::default());
    let index = Arc::new(Mutex::new(Index::default()));
    let standings = Arc::new(Standings::default());
    let mut store = SqliteStore {
        connection,
        path: path.clone(),
        index: index.clone(),
        runs: Cache::new(CACHED_ROWS),
        jobs: Cache::new(CACHED_ROWS),
        attempts: Cache::new(CACHED_ROWS),
        tips: Cache::new(CACHED_ROWS),
        specs: Specs::new(CACHED_SPEC_BYTES),
        standings: standings.clone(),
        batch: 0,
        in_batch: false,
        doubtful: false,
        unknown: None,
        newest: Millis::ZERO,
        run_count: 0,
        flushes: 0,
        gauges: gauges.clone(),
    };
    store.reload()?;
    let tables = SqliteSideTables::open(&path, standings)?;
    let reader = SqliteReader::open(&path, gauges, index, &tables)?;
    Ok((store, reader, tables))
}

impl SqliteStore {
    /// Forgets everything and reads what is live from the file.
    pub(super) fn reload(&mut self) -> Result<(), StoreError> {
        self.runs.clear();
        self.jobs.clear();
        self.attempts.clear();
        self.tips.clear();
        self.specs.clear();
        *self.index() = Index::default();
        self.newest = Millis(self.meta("newest")?);
        self.run_count = column::unsigned(self.meta("runs")?);
        self.reload_runs()?;
        self.reload_lines()?;
        self.reload_attempts()?;
        self.reload_queue()?;
        self.doubtful = false;
        self.show_gauges();
        Ok(())
    }

    fn reload_runs(&mut self) -> Result<(), StoreError> {
        let sql = concat!(
            "SELECT ",
            columns!(run),
            " FROM runs INDEXED BY runs_live WHERE ended_at IS NULL OR live_jobs > 0"
        );
        for run in rows::all(&self.connection, sql, [], rows::read_run)? {
            self.index().put_run(&run);
        }
        Ok(())
    }

    /// Jobs in the line of a concurrency group.
    fn reload_lines(&mut self) -> Result<(), StoreError> {
        let sql = concat!(
            "SELECT ",
            columns!(job),
            " FROM jobs INDEXED BY jobs_in_line WHERE place IS NOT NULL AND resolution IS NULL"
        );
        for job in rows::all(&self.connection, sql, [], rows::read_job)? {
            self.index().put_job(&job);
        }
        Ok(())
    }

    /// Attempts that are leased, and retries that wait for their moment.
    fn reload_attempts(&mut self) -> Result<(), StoreError> {
        let live = "SELECT run_id FROM runs INDEXED BY runs_live \
                    WHERE ended_at IS NULL OR live_jobs > 0";
        let columns = concat!(columns!(attempt), ", ", columns!(lease));
        let leased = format!(
            "SELECT {columns} FROM attempts WHERE run_id IN ({live}) \
             AND lease_state IN ('GRANTED', 'ACTIVE')"
        );
        let delayed = format!(
            "SELECT {columns} FROM attempts \
             WHERE (run_id, job, attempt) IN (SELECT run_id, job, attempt FROM delayed)"
        );
        let nowhere: Text = "".into();
        for sql in [leased, delayed] {
            for attempt in rows::all(&self.connection, &sql, [], rows::read_attempt)? {
                if attempt.state == delta_core::AttemptState::Queued {
                    let why = format!("{} is queued and leased or delayed", attempt.id);
                    return Err(corrupt("an attempt", why));
                }
                self.index().put_attempt(&attempt, || &nowhere);
                self.attempts.put(attempt.id, Arc::new(attempt), 0);
            }
        }
        Ok(())
    }

    /// Attempts that wait for a lease. Few policies for many jobs: each text is read once.
    fn reload_queue(&mut self) -> Result<(), StoreError> {
        // Crossed, so that SQLite takes the tables in this order.
        let sql = "SELECT a.run_id, a.job, a.attempt, j.policy, a.order_key, \
                   coalesce(a.queued_at, a.created_at) FROM runs r INDEXED BY runs_live \
                   CROSS JOIN attempts a ON a.run_id = r.run_id AND a.state = 'QUEUED' \
                   CROSS JOIN jobs j ON j.run_id = a.run_id AND j.job = a.job \
                   WHERE r.ended_at IS NULL OR r.live_jobs > 0";
        let mut keys: HashMap<String, Text> = HashMap::new();
        for (id, policy, order, since) in rows::all(&self.connection, sql, [], rows::read_place)? {
            let key = match keys.get(&policy) {
                Some(key) => key.clone(),
                None => {
                    let key = json::decode_policy(&policy)?.requires;
                    keys.insert(policy, key.clone());
                    key
                }
            };
            self.index().enter(id, key, order, since);
        }
        Ok(())
    }

    pub(super) fn meta(&self, name: &str) -> Result<i64, StoreError> {
        let sql = "SELECT value FROM meta WHERE name = ?1";
        let found = rows::one(&self.connection, sql, [name], rows::read_number)?;
        found.ok_or_else(|| corrupt("the table meta", format!("`{name}` is missing")))
    }

    pub(super) fn show_gauges(&self) {
        self.gauges.runs.store(self.run_count, Relaxed);
        let index = self.index();
        self.gauges.queued.store(index.queued_count(), Relaxed);
        self.gauges.leased.store(index.leased_count(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: u32 = MIGRATIONS[MIGRATIONS.len() - 1].version;

    const NEXT: Migration = Migration {
        version: KNOWN + 1,
        sql: "ALTER TABLE runs ADD COLUMN note TEXT",
    };

    fn upgraded(next: Migration) -> Vec<Migration> {
        [MIGRATIONS, &[next]].concat()
    }

    #[test]
    fn an_upgrade_copies_the_file_first() {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path()).unwrap());
        let copy = dir.path().join(format!("delta-ci.db.before-{KNOWN}"));
        assert!(!copy.exists());
        drop(open_with(dir.path(), &upgraded(NEXT)).unwrap());
        assert!(copy.exists());
        let copied = rusqlite::Connection::open(&copy).unwrap();
        let version: u32 = copied
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .unwrap();
        assert_eq!(version, KNOWN);
    }

    #[test]
    fn tokens_of_an_older_file_keep_their_rights() {
        use crate::credential::{CredentialReader as _, Role, Scope};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let connection = open_writer(&path).unwrap();
        let mut file = File {
            connection: &connection,
            path,
        };
        migrate(&mut file, &MIGRATIONS[..2]).unwrap();
        let insert = "INSERT INTO credentials (credential_id, project, name, role, hash, \
                      created_at, expires_at) VALUES ('tok_1', 'default', 'n', 'runner', \
                      zeroblob(32), 5, 99)";
        connection.execute(insert, []).unwrap();
        drop(connection);
        let (_store, reader, _) = open(dir.path()).unwrap();
        let kept = reader.credential(&[0; 32]).unwrap().unwrap();
        assert_eq!((&*kept.id, kept.role), ("tok_1", Role::Runner));
        assert_eq!(kept.expires_at, Some(Millis(99)));
        assert_eq!(kept.scope, Scope::any_label());
    }

    #[test]
    fn a_newer_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        drop(open_with(dir.path(), &upgraded(NEXT)).unwrap());
        let refused = open(dir.path());
        assert!(matches!(
            refused,
            Err(StoreError::TooNew { found, known: KNOWN }) if found == KNOWN + 1
        ));
    }

    #[test]
    fn a_step_that_fails_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path()).unwrap());
        let broken = Migration {
            version: KNOWN + 1,
            sql: "CREATE TABLE half (x); CREATE TABLE runs (x)",
        };
        assert!(open_with(dir.path(), &upgraded(broken)).is_err());
        let (store, _, _) = open(dir.path()).unwrap();
        let half = store.connection.table_exists(None, "half").unwrap();
        assert!(!half);
    }

    #[test]
    fn a_state_outside_the_specification_cannot_be_written() {
        // SM-5, SM-23, SM-39
        let dir = tempfile::tempdir().unwrap();
        let (store, _, _) = open(dir.path()).unwrap();
        let insert = "INSERT INTO runs (run_id, project, state, created_at, jobs, live_jobs, \
                      required_failed, required_canceled, header) \
                      VALUES (zeroblob(16), 'default', ?1, 0, 0, 0, 0, 0, '{}')";
        assert!(store.connection.execute(insert, ["PAUSED"]).is_err());
        assert!(store.connection.execute(insert, ["QUEUED"]).is_ok());
        let attempt = "INSERT INTO attempts (run_id, job, attempt, project, state, created_at, \
                       not_before, order_key, losses, dispatches, lease_number, lease_state) \
                       VALUES (zeroblob(16), 1, 1, 'default', ?1, 0, 0, 0, 0, 0, 0, ?2)";
        assert!(
            store
                .connection
                .execute(attempt, ["STALE", "ACTIVE"])
                .is_err()
        );
        assert!(
            store
                .connection
                .execute(attempt, ["RUNNING", "LOST"])
                .is_err()
        );
        assert!(
            store
                .connection
                .execute(attempt, ["RUNNING", "ACTIVE"])
                .is_ok()
        );
    }

    #[cfg(unix)]
    #[test]
    fn the_file_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path()).unwrap());
        let mode = dir
            .path()
            .join(FILE)
            .metadata()
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
