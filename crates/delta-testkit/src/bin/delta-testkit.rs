//! Holds a part that tests use until it is ended, in whatever way: the part ends with it.
//!
//! `delta-testkit postgres [CONNECTIONS]` starts a cluster and prints its admin URL, for
//! `DELTA_TEST_POSTGRES_URL`; `delta-testkit hold PROGRAM ARGS…` starts a process and prints its
//! pid.

use anyhow::{Context, Result, bail};
use delta_testkit::postgres::{Postgres, PostgresOptions};
use delta_testkit::process::Spawn;

const USAGE: &str = "usage: delta-testkit postgres [CONNECTIONS] | hold PROGRAM ARGS…";

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("postgres") => {
            let mut options = PostgresOptions::durable();
            if let Some(text) = arguments.next() {
                options.max_connections = text.parse().context("CONNECTIONS is a number")?;
            }
            let cluster = Postgres::start_with(options)?;
            println!("{}", cluster.url("postgres"));
            until_ended()
        }
        Some("hold") => {
            let program = arguments.next().context(USAGE)?;
            let process = Spawn::new(program).args(arguments).spawn()?;
            println!("{}", process.pid());
            until_ended()
        }
        _ => bail!(USAGE),
    }
}

fn until_ended() -> ! {
    loop {
        std::thread::park();
    }
}
