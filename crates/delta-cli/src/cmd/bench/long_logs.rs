//! `delta-ci bench logs`: how fast a long log reaches the server, and what masking costs of that.

use std::time::Duration;

use anyhow::Result;

use super::Common;
use crate::bench::child::ServerUnderTest;
use crate::bench::numbers::ratio;
use crate::bench::{logs, masked};
use crate::terminal::Terminal;

pub const EXAMPLES: &str = "\
Examples:
  delta-ci bench logs
  delta-ci bench logs --megabytes 250 --rounds 5
  delta-ci bench logs --masked --rounds 10

With --masked a job prints the log on a real agent, in turns without and with three secrets.";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Megabytes of the log
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=255))]
    megabytes: u64,
    /// Logs, one after another
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// What masking costs: print it on a real agent, without and with secrets
    #[arg(long)]
    masked: bool,
    #[command(flatten)]
    common: Common,
}

pub async fn measure(args: Args, terminal: &Terminal) -> Result<()> {
    if args.masked {
        with_secrets(args, terminal).await
    } else {
        plain(args, terminal).await
    }
}

async fn plain(args: Args, terminal: &Terminal) -> Result<()> {
    let server = ServerUnderTest::start(&args.common.store, &[]).await?;
    let bytes = args.megabytes * 1_000_000;
    for round in 1..=args.rounds {
        let measured = logs::measure(&server, bytes);
        let found = tokio::time::timeout(args.common.limit(), measured).await??;
        let rate = |took: Duration| ratio(found.bytes as f64 / 1e6, took.as_secs_f64());
        let resident = server.usage().resident_bytes as f64 / 1e6;
        if terminal.json {
            terminal.value(&serde_json::json!({
                "round": round,
                "bytes": found.bytes,
                "received_mb_per_second": rate(found.received),
                "stored_mb_per_second": rate(found.stored),
                "read_mb_per_second": rate(found.read),
                "plain_file_mb_per_second": rate(found.file),
                "server_resident_mb": resident,
            }));
        } else {
            terminal.data(&format!(
                "{} MB: received {:.0} MB/s, on disk {:.0} MB/s, read back {:.0} MB/s; \
                 a plain file {:.0} MB/s; server {resident:.1} MB",
                args.megabytes,
                rate(found.received),
                rate(found.stored),
                rate(found.read),
                rate(found.file),
            ));
        }
    }
    Ok(())
}

async fn with_secrets(args: Args, terminal: &Terminal) -> Result<()> {
    let server = ServerUnderTest::start(&args.common.store, &[]).await?;
    let mut place = masked::Place::new(&server, args.megabytes * 1_000_000).await?;
    let megabytes = place.bytes() as f64 / 1e6;
    let rate = |took: Duration| ratio(megabytes, took.as_secs_f64());
    let (mut plain, mut with) = (Duration::MAX, Duration::MAX);
    for round in 1..=args.rounds {
        let found = tokio::time::timeout(args.common.limit(), place.round(round)).await??;
        (plain, with) = (plain.min(found.plain), with.min(found.masked));
        terminal.say(&format!(
            "round {round}: plain {:.0} MB/s, masked {:.0} MB/s",
            rate(found.plain),
            rate(found.masked)
        ));
    }
    let cost = 100.0 * (1.0 - ratio(plain.as_secs_f64(), with.as_secs_f64()));
    if terminal.json {
        terminal.value(&serde_json::json!({
            "bytes": place.bytes(),
            "rounds": args.rounds,
            "plain_mb_per_second": rate(plain),
            "masked_mb_per_second": rate(with),
            "masking_costs_percent": cost,
        }));
        return Ok(());
    }
    terminal.data(&format!(
        "{megabytes:.0} MB, job to read back, best of {}: plain {:.0} MB/s, masked {:.0} MB/s: \
         masking costs {cost:.0} % of the throughput",
        args.rounds,
        rate(plain),
        rate(with),
    ));
    Ok(())
}
