//! The byte proxy before a real PostgreSQL: a COMMIT cut in its three ways.

use std::time::Duration;

use anyhow::Result;
use delta_testkit::postgres::{PgDatabase, fresh_database};
use delta_testkit::proxy::{CommitCut, Proxy};
use delta_testkit::wait::eventually_async;

use crate::postgres::connect;

const LONG: Duration = Duration::from_secs(30);

fn set_up() -> Result<(PgDatabase, Proxy, String)> {
    let database = fresh_database()?;
    database.execute("CREATE TABLE t (n int)")?;
    let proxy = Proxy::start(database.addr()?, 1)?;
    let url = database.url_through(proxy.addr())?;
    Ok((database, proxy, url))
}

async fn insert_in_a_transaction(url: &str) -> Result<()> {
    let mut client = connect(url).await?;
    let transaction = client.transaction().await?;
    transaction
        .execute("INSERT INTO t VALUES ($1)", &[&1])
        .await?;
    Ok(transaction.commit().await?)
}

/// Rows there are once no transaction is under way.
async fn settled_rows(database: &PgDatabase) -> Result<i64> {
    let client = connect(&database.url).await?;
    let others = "SELECT count(*) FROM pg_stat_activity \
                  WHERE datname = current_database() AND pid <> pg_backend_pid()";
    eventually_async(LONG, "the cut session has ended", async || {
        match client.query_one(others, &[]).await {
            Ok(row) if row.get::<_, i64>(0) == 0 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    Ok(client
        .query_one("SELECT count(*) FROM t", &[])
        .await?
        .get(0))
}

#[tokio::test]
async fn transactions_pass_unhurt() -> Result<()> {
    let (database, proxy, url) = set_up()?;
    insert_in_a_transaction(&url).await?;
    assert_eq!(settled_rows(&database).await?, 1);
    assert!(proxy.journal().lines().is_empty());
    Ok(())
}

// F19
#[tokio::test]
async fn a_commit_cut_before_it_arrives_has_not_happened() -> Result<()> {
    let (database, proxy, url) = set_up()?;
    proxy.cut_commit_once(CommitCut::Before);
    assert!(insert_in_a_transaction(&url).await.is_err());
    assert_eq!(settled_rows(&database).await?, 0);
    insert_in_a_transaction(&url).await?;
    assert_eq!(settled_rows(&database).await?, 1);
    Ok(())
}

// F19
#[tokio::test]
async fn a_commit_whose_answer_is_lost_has_happened() -> Result<()> {
    let (database, proxy, url) = set_up()?;
    proxy.cut_commit_once(CommitCut::After);
    assert!(insert_in_a_transaction(&url).await.is_err());
    assert_eq!(settled_rows(&database).await?, 1);
    assert_eq!(proxy.journal().count("answer swallowed"), 1);
    Ok(())
}

// F19
#[tokio::test]
async fn a_commit_cut_in_flight_is_an_error_and_settles() -> Result<()> {
    let (database, proxy, url) = set_up()?;
    proxy.cut_commit_once(CommitCut::Unknown);
    assert!(insert_in_a_transaction(&url).await.is_err());
    assert!((0..=1).contains(&settled_rows(&database).await?));
    assert_eq!(proxy.armed(), 0);
    Ok(())
}
