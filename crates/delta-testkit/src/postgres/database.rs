//! A database of a test's own, on this process's cluster or on one that the caller keeps running.
//!
//! Starting a cluster takes a second or two, and under nextest every test is a process. So the
//! test command may start one cluster for all of them and name it in [`ADMIN_URL_VARIABLE`].
//! Tests that restart or pause the server start their own, whatever that variable says.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use tokio_postgres::NoTls;

use super::{Postgres, url};

/// Names a running cluster by the URL of a user who may create databases.
pub const ADMIN_URL_VARIABLE: &str = "DELTA_TEST_POSTGRES_URL";

/// Creating a database copies some 8 MB and syncs them, on a disk that other tests keep busy.
const STATEMENT_DEADLINE: Duration = Duration::from_secs(60);

/// A database for one test.
#[derive(Debug)]
pub struct PgDatabase {
    pub url: String,
    pub name: String,
    admin_url: String,
    after: After,
}

/// What becomes of a database when the test is done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    /// Its cluster ends with the test, and may well be down by now.
    Keep,
    /// Its cluster goes on.
    Drop,
}

/// A new, empty database: on the cluster that [`ADMIN_URL_VARIABLE`] names, otherwise on
/// [`Postgres::shared`].
pub fn fresh_database() -> Result<PgDatabase> {
    match std::env::var(ADMIN_URL_VARIABLE) {
        Ok(admin_url) => create(&admin_url, &fresh_name(), After::Drop)
            .with_context(|| format!("on the cluster named in {ADMIN_URL_VARIABLE}")),
        Err(_) => Postgres::shared().fresh_database(),
    }
}

impl PgDatabase {
    /// The address of the server, as a target for a fault proxy.
    pub fn addr(&self) -> Result<SocketAddr> {
        url::addr(&self.url)
    }

    /// This database by way of another address, as of a fault proxy.
    pub fn url_through(&self, addr: SocketAddr) -> Result<String> {
        url::with_addr(&self.url, addr)
    }

    /// Runs statements on it. For setting up and for breaking things; not a client.
    pub fn execute(&self, sql: &str) -> Result<()> {
        execute(&self.url, sql)
    }
}

impl Drop for PgDatabase {
    fn drop(&mut self) {
        if self.after == After::Drop {
            let sql = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
            if let Err(error) = execute(&self.admin_url, &sql) {
                eprintln!("database {} is left behind: {error:#}", self.name);
            }
        }
    }
}

pub(super) fn create(admin_url: &str, name: &str, after: After) -> Result<PgDatabase> {
    let plain = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    ensure!(
        name.starts_with(|first: char| first.is_ascii_lowercase())
            && name.chars().all(|letter| plain(letter) || letter == '_'),
        "a database name is lowercase letters, digits and _, not {name:?}"
    );
    execute(admin_url, &format!("CREATE DATABASE {name}"))
        .with_context(|| format!("creating database {name}"))?;
    let url = url::with_database(admin_url, name)?;
    Ok(PgDatabase {
        url,
        name: name.to_owned(),
        admin_url: admin_url.to_owned(),
        after,
    })
}

/// Differs between processes by pid and time, and within one by a count.
pub(super) fn fresh_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    format!(
        "test_{}_{count}_{:x}",
        std::process::id(),
        since_epoch.subsec_nanos()
    )
}

/// On a thread and a runtime of its own, since the caller may be inside one that cannot block.
fn execute(url: &str, sql: &str) -> Result<()> {
    let work = || -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            tokio::time::timeout(STATEMENT_DEADLINE, async {
                let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
                let driver = tokio::spawn(connection);
                let done = client.batch_execute(sql).await;
                drop(client);
                // Ends with the client; the statement's own result is what counts.
                let _ = driver.await;
                done
            })
            .await
            .context("no answer from PostgreSQL")?
            .context("PostgreSQL refused")
        })
    };
    std::thread::scope(|scope| scope.spawn(work).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
