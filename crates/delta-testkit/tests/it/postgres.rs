//! A real PostgreSQL: it starts, gives out databases, and is gone afterwards.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use delta_testkit::postgres::{
    ADMIN_URL_VARIABLE, Fsync, Postgres, PostgresOptions, fresh_database,
};
use delta_testkit::process::Spawn;
use delta_testkit::wait::eventually;
use tokio_postgres::NoTls;

const LONG: Duration = Duration::from_secs(30);

pub async fn connect(url: &str) -> Result<tokio_postgres::Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    // Ends with the client; a broken connection shows in the client's calls.
    tokio::spawn(connection);
    Ok(client)
}

pub async fn setting(url: &str, name: &str) -> Result<String> {
    let row = connect(url)
        .await?
        .query_one(&format!("SHOW {name}"), &[])
        .await?;
    Ok(row.get(0))
}

/// The processes whose working folder is this one.
pub fn members_of(data: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .map(|entry| entry.path());
    entries
        .filter(|path| fs::read_link(path.join("cwd")).is_ok_and(|cwd| cwd == data))
        .collect()
}

#[tokio::test]
async fn a_cluster_starts_durable_and_is_reachable_both_ways() -> Result<()> {
    let cluster = Postgres::start()?;
    let url = cluster.url("postgres");
    assert_eq!(setting(&url, "fsync").await?, "on");
    assert_eq!(setting(&url, "synchronous_commit").await?, "on");
    assert_eq!(setting(&url, "max_connections").await?, "100");
    let by_socket = cluster.socket_url("postgres");
    assert_eq!(
        setting(&by_socket, "port").await?,
        cluster.addr().port().to_string()
    );
    assert!(cluster.log().contains("ready to accept connections"));
    Ok(())
}

#[tokio::test]
async fn options_reach_the_server() -> Result<()> {
    let mut options = PostgresOptions::durable();
    options.fsync = Fsync::Off;
    options.max_connections = 17;
    options.settings.push(("work_mem".into(), "'1MB'".into()));
    let cluster = Postgres::start_with(options)?;
    let url = cluster.url("postgres");
    assert_eq!(setting(&url, "fsync").await?, "off");
    assert_eq!(setting(&url, "max_connections").await?, "17");
    assert_eq!(setting(&url, "work_mem").await?, "1MB");
    Ok(())
}

#[test]
fn a_dropped_cluster_leaves_no_process_and_no_folder() -> Result<()> {
    let cluster = Postgres::start()?;
    let folder = cluster.folder().to_owned();
    assert!(!members_of(&folder.join("data")).is_empty());
    drop(cluster);
    assert!(members_of(&folder.join("data")).is_empty());
    assert!(!folder.exists());
    Ok(())
}

#[test]
fn a_paused_cluster_can_be_dropped() -> Result<()> {
    let cluster = Postgres::start()?;
    let folder = cluster.folder().to_owned();
    cluster.pause_backends()?;
    drop(cluster);
    assert!(members_of(&folder.join("data")).is_empty());
    assert!(!folder.exists());
    Ok(())
}

#[test]
fn a_cluster_dies_with_a_killed_test_process() -> Result<()> {
    let places = tempfile::tempdir()?;
    open_to_all(places.path())?;
    let holder = Spawn::new(env!("CARGO_BIN_EXE_delta-testkit"))
        .arg("postgres")
        .env("TMPDIR", places.path())
        .spawn()?;
    holder.wait_for_line("postgres://", LONG)?;
    let made = fs::read_dir(places.path())?
        .flatten()
        .map(|entry| entry.path().canonicalize());
    let clusters = made
        .filter_map(Result::ok)
        .filter(|path| path.join("data").exists());
    let folder = clusters.last().context("the holder made no cluster")?;
    assert!(!members_of(&folder.join("data")).is_empty());
    holder.kill9()?;
    eventually(LONG, "the cluster is gone, its folder too", || {
        let members = members_of(&folder.join("data"));
        if members.is_empty() && !folder.exists() {
            Ok(())
        } else {
            Err(members)
        }
    });
    Ok(())
}

#[tokio::test]
async fn fresh_databases_are_apart_from_each_other() -> Result<()> {
    let (one, other) = (fresh_database()?, fresh_database()?);
    assert_ne!(one.name, other.name);
    one.execute("CREATE TABLE only_here (n int)")?;
    assert!(other.execute("SELECT * FROM only_here").is_err());
    let name: String = connect(&one.url)
        .await?
        .query_one("SELECT current_database()", &[])
        .await?
        .get(0);
    assert_eq!(name, one.name);
    Ok(())
}

#[test]
fn a_database_name_is_checked() {
    let error = Postgres::shared()
        .create_database("x; DROP DATABASE y")
        .unwrap_err();
    assert!(error.to_string().contains("lowercase"), "{error}");
}

#[tokio::test]
async fn a_running_cluster_named_by_the_environment_is_used_and_left_tidy() -> Result<()> {
    if std::env::var(ADMIN_URL_VARIABLE).is_ok() {
        // The inner run below: this process has the variable, and a database for a moment.
        let database = fresh_database()?;
        return database.execute("CREATE TABLE t (n int)");
    }
    let mut options = PostgresOptions::durable();
    options
        .settings
        .push(("log_statement".into(), "all".into()));
    let cluster = Postgres::start_with(options)?;
    let test = "postgres::a_running_cluster_named_by_the_environment_is_used_and_left_tidy";
    let inner = Spawn::new(std::env::current_exe()?)
        .args([test, "--exact"])
        .env(ADMIN_URL_VARIABLE, cluster.url("postgres"))
        .spawn()?;
    assert!(inner.wait(LONG)?.success());
    assert!(
        cluster.log().contains("CREATE DATABASE test_"),
        "{}",
        cluster.log()
    );
    let client = connect(&cluster.url("postgres")).await?;
    let sql = "SELECT count(*) FROM pg_database WHERE datname LIKE 'test%'";
    assert_eq!(client.query_one(sql, &[]).await?.get::<_, i64>(0), 0);
    Ok(())
}

/// A server user that is not us must be able to enter.
fn open_to_all(folder: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(
        folder,
        fs::Permissions::from_mode(0o755),
    )?)
}
