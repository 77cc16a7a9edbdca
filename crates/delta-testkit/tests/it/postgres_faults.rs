//! A real PostgreSQL, hurt: what was committed is there afterwards.

use std::time::{Duration, Instant};

use anyhow::Result;
use delta_testkit::postgres::{PgDatabase, Postgres, Restart};
use tokio::time::timeout;

use crate::postgres::connect;

const LONG: Duration = Duration::from_secs(30);

fn cluster_with_a_row() -> Result<(Postgres, PgDatabase)> {
    let cluster = Postgres::start()?;
    let database = cluster.fresh_database()?;
    database.execute("CREATE TABLE t (n int); INSERT INTO t VALUES (1)")?;
    Ok((cluster, database))
}

async fn rows(url: &str) -> Result<i64> {
    Ok(connect(url)
        .await?
        .query_one("SELECT count(*) FROM t", &[])
        .await?
        .get(0))
}

// F16
#[tokio::test]
async fn committed_rows_survive_both_kinds_of_restart() -> Result<()> {
    let (cluster, database) = cluster_with_a_row()?;
    for how in [Restart::Fast, Restart::Immediate] {
        let before = cluster.pid();
        let client = connect(&database.url).await?;
        client.batch_execute("SELECT 1").await?;
        cluster.restart(how)?;
        assert_ne!(cluster.pid(), before);
        assert!(
            client.batch_execute("SELECT 1").await.is_err(),
            "{how:?} cuts sessions"
        );
        assert_eq!(rows(&database.url).await?, 1, "{how:?}");
    }
    assert!(
        cluster.log().contains("was not properly shut down"),
        "recovery has run"
    );
    Ok(())
}

// F17
#[tokio::test]
async fn committed_rows_survive_kill_9_of_the_postmaster() -> Result<()> {
    let (cluster, database) = cluster_with_a_row()?;
    let client = connect(&database.url).await?;
    client.batch_execute("INSERT INTO t VALUES (2)").await?;
    cluster.kill9_postmaster()?;
    assert_eq!(cluster.pid(), None);
    assert!(connect(&database.url).await.is_err());
    cluster.start_again()?;
    assert_eq!(rows(&database.url).await?, 2);
    // Running already: nothing to start.
    let pid = cluster.pid();
    cluster.start_again()?;
    assert_eq!(cluster.pid(), pid);
    Ok(())
}

// F17, with a backend that does not notice for a long time
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_orphan_does_not_keep_the_cluster_down() -> Result<()> {
    let (cluster, database) = cluster_with_a_row()?;
    let client = connect(&database.url).await?;
    let busy = tokio::spawn(async move {
        let sql = "DO $$ BEGIN LOOP PERFORM 1; END LOOP; END $$";
        client.batch_execute(sql).await
    });
    let watcher = connect(&database.url).await?;
    let active = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'DO %'";
    delta_testkit::wait::eventually_async(LONG, "the busy query runs", async || {
        match watcher.query_one(active, &[]).await {
            Ok(row) if row.get::<_, i64>(0) == 1 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    cluster.kill9_postmaster()?;
    tokio::task::block_in_place(|| cluster.start_again())?;
    assert!(busy.await?.is_err());
    assert_eq!(rows(&database.url).await?, 1);
    Ok(())
}

// F18
#[tokio::test]
async fn a_paused_cluster_hangs_with_its_connections_open_and_goes_on() -> Result<()> {
    let (cluster, database) = cluster_with_a_row()?;
    let client = connect(&database.url).await?;
    client.batch_execute("SELECT 1").await?;
    cluster.pause_backends()?;
    let pause = Duration::from_millis(200);
    let asked = Instant::now();
    let query = client.query_one("SELECT count(*) FROM t", &[]);
    tokio::pin!(query);
    assert!(
        timeout(pause, &mut query).await.is_err(),
        "no answer while paused"
    );
    assert!(
        timeout(pause, connect(&database.url)).await.is_err(),
        "no session while paused"
    );
    cluster.resume_backends()?;
    let row = timeout(LONG, query).await??;
    assert_eq!(row.get::<_, i64>(0), 1);
    assert!(asked.elapsed() >= 2 * pause);
    Ok(())
}
