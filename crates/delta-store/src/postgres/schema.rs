//! The schema and its versions: made and changed under an advisory lock, so that servers starting
//! together do not step on each other.

use tokio::runtime::Runtime;
use tokio_postgres::{Client, Error, Row};

use super::connect::{Driver, Planning, SCHEMA, Target};
use super::error::Trouble;
use crate::StoreError;
use crate::migrate::{self, Migration};

const STEPS: &[Migration] = &[
    Migration {
        version: 1,
        sql: include_str!("../../migrations/postgres/0001_first.sql"),
    },
    Migration {
        version: 2,
        sql: include_str!("../../migrations/postgres/0002_lists.sql"),
    },
    Migration {
        version: 3,
        sql: include_str!("../../migrations/postgres/0003_credentials.sql"),
    },
    Migration {
        version: 4,
        sql: include_str!("../../migrations/postgres/0004_agents.sql"),
    },
    Migration {
        version: 5,
        sql: include_str!("../../migrations/postgres/0005_rows_of_events.sql"),
    },
    Migration {
        version: 6,
        sql: include_str!("../../migrations/postgres/0006_results.sql"),
    },
    Migration {
        version: 7,
        sql: include_str!("../../migrations/postgres/0007_secrets.sql"),
    },
    Migration {
        version: 8,
        sql: include_str!("../../migrations/postgres/0008_functions.sql"),
    },
    Migration {
        version: 9,
        sql: include_str!("../../migrations/postgres/0009_forges.sql"),
    },
    Migration {
        version: 10,
        sql: include_str!("../../migrations/postgres/0010_reruns.sql"),
    },
    Migration {
        version: 11,
        sql: include_str!("../../migrations/postgres/0011_groups.sql"),
    },
    Migration {
        version: 12,
        sql: include_str!("../../migrations/postgres/0012_secrets_of_branches.sql"),
    },
    Migration {
        version: 13,
        sql: include_str!("../../migrations/postgres/0013_stages_of_reports.sql"),
    },
    Migration {
        version: 14,
        sql: include_str!("../../migrations/postgres/0014_identity.sql"),
    },
    Migration {
        version: 15,
        sql: include_str!("../../migrations/postgres/0015_processes_of_agents.sql"),
    },
];

/// Any number nobody else is likely to use: "delta-ci" in ASCII.
const LOCK: i64 = 0x6465_6c74_612d_6369;

/// The oldest server that can say whether a transaction was committed (`pg_xact_status` of xid8).
const OLDEST_SERVER: i32 = 130_000;

/// A session that may change the schema. It holds the lock, and the lock is gone with it.
struct Changer<'r> {
    runtime: &'r Runtime,
    client: Client,
    _driver: Driver,
}

/// Brings the schema to the version this program knows.
pub(super) fn migrate(runtime: &Runtime, target: &Target) -> Result<(), StoreError> {
    let mut changer = Changer::connect(runtime, target)?;
    // Nobody needs the lock to see that nothing is to be done.
    if migrate::Target::version(&mut changer)? != known() {
        // Another server's migration takes as long as it takes.
        changer.run(&format!(
            "SET lock_timeout = 0; SELECT pg_advisory_lock({LOCK})"
        ))?;
    }
    migrate::migrate(&mut changer, STEPS)
}

/// Looks whether the schema is the one this program knows, and changes nothing.
pub(super) fn check(runtime: &Runtime, target: &Target) -> Result<(), StoreError> {
    let mut changer = Changer::connect(runtime, target)?;
    migrate::check(&mut changer, STEPS)
}

fn known() -> u32 {
    STEPS.last().map_or(0, |last| last.version)
}

impl<'r> Changer<'r> {
    fn connect(runtime: &'r Runtime, target: &Target) -> Result<Changer<'r>, StoreError> {
        let (client, driver) = runtime.block_on(target.connect(Planning::Unbounded, None))?;
        let changer = Changer {
            runtime,
            client,
            _driver: driver,
        };
        let version: i32 = changer
            .one("SELECT current_setting('server_version_num')::int4")?
            .get(0);
        if version < OLDEST_SERVER {
            let text = format!("PostgreSQL 13 or newer is needed, the server is {version}");
            return Err(StoreError::Unavailable(text));
        }
        Ok(changer)
    }

    fn run(&self, text: &str) -> Result<(), StoreError> {
        self.wait(self.client.batch_execute(text))
    }

    fn one(&self, text: &str) -> Result<Row, StoreError> {
        self.wait(self.client.query_one(text, &[]))
    }

    fn wait<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, StoreError> {
        let answer = self.runtime.block_on(work);
        Ok(answer.map_err(|error| Trouble::of(&error))?)
    }
}

impl migrate::Target for Changer<'_> {
    fn version(&mut self) -> Result<u32, StoreError> {
        let exists = format!("SELECT to_regclass('{SCHEMA}.schema_version') IS NOT NULL");
        if !self.one(&exists)?.get::<_, bool>(0) {
            return Ok(0);
        }
        let newest = format!("SELECT max(version) FROM {SCHEMA}.schema_version");
        let version: Option<i64> = self.one(&newest)?.get(0);
        match version.map(u32::try_from) {
            Some(Ok(version)) => Ok(version),
            _ => Err(StoreError::Corrupt("the schema has no version".into())),
        }
    }

    fn before_change(&mut self, from: u32) -> Result<(), StoreError> {
        // A copy of the database is its administrator's: every step is one transaction.
        tracing::info!(from, "the schema is brought up to date");
        Ok(())
    }

    fn step(&mut self, migration: &Migration) -> Result<(), StoreError> {
        let Migration { version, sql } = migration;
        let text = format!(
            "BEGIN; CREATE SCHEMA IF NOT EXISTS {SCHEMA}; \
             CREATE TABLE IF NOT EXISTS schema_version (version bigint PRIMARY KEY); \
             {sql}; INSERT INTO schema_version VALUES ({version}); COMMIT;"
        );
        self.run(&text)
    }
}
