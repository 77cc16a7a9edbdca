//! Functions that end in every way a function can: to try a worker against, and for tests.

use std::process::ExitCode;
use std::time::Duration;

use delta_runner::{Context, Failure, Runner};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Seconds {
    seconds: f64,
}

async fn echo(params: Value, context: Context) -> Result<Value, Failure> {
    Ok(json!({
        "params": params,
        "attempt": context.attempt,
        "epoch": context.lease_epoch,
        "queue": context.queue,
        "trace": context.trace,
    }))
}

async fn wait(params: Seconds, _: Context) -> Result<&'static str, Failure> {
    tokio::time::sleep(Duration::from_secs_f64(params.seconds)).await;
    Ok("waited")
}

async fn heed(_: Value, context: Context) -> Result<&'static str, Failure> {
    context.cancelled().await;
    Ok("put in order")
}

async fn fail(_: Value, _: Context) -> Result<(), Failure> {
    let details = json!({"tries": [1, 2]});
    Err(Failure::error("boom")
        .of_type("t")
        .code("c")
        .details(details))
}

async fn retry(params: Seconds, _: Context) -> Result<(), Failure> {
    let after = Duration::from_secs_f64(params.seconds);
    Err(Failure::retry("later").after(after))
}

async fn broken(_: Value, _: Context) -> Result<(), Failure> {
    let read = std::fs::read("/no/such/file");
    read?;
    Ok(())
}

async fn panics(_: Value, _: Context) -> Result<(), Failure> {
    panic!("as it was asked to")
}

async fn large(params: Seconds, _: Context) -> Result<String, Failure> {
    Ok("x".repeat(params.seconds as usize))
}

fn spin(_: Value, context: Context) -> Result<(), Failure> {
    while !context.is_cancelled() {
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(Failure::error("nobody wants it"))
}

#[tokio::main]
async fn main() -> ExitCode {
    let most = std::env::var("CONCURRENCY").ok();
    let most = most.and_then(|most| most.parse().ok()).unwrap_or(64);
    Runner::new()
        .handle("echo", echo)
        .handle("wait", wait)
        .handle("heed", heed)
        .handle("fail", fail)
        .handle("retry", retry)
        .handle("broken", broken)
        .handle("panics", panics)
        .handle("large", large)
        .handle_blocking("spin", spin)
        .concurrency(most)
        .shutdown_grace(Duration::from_secs(5))
        .main()
        .await
}
