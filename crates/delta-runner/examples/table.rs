//! Functions that end in every way a function can: to try a worker against, and for tests.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

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

#[derive(Deserialize)]
struct Until {
    until: u32,
}

async fn flaky(params: Until, context: Context) -> Result<u32, Failure> {
    if context.attempt < params.until {
        Err(Failure::error("not yet"))
    } else {
        Ok(context.attempt)
    }
}

async fn later(params: Seconds, context: Context) -> Result<u32, Failure> {
    match context.attempt {
        1 => retry(params, context).await.map(|()| 1),
        attempt => Ok(attempt),
    }
}

#[derive(Deserialize)]
struct Files {
    path: PathBuf,
    go: PathBuf,
}

fn append(path: &Path, line: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(format!("{line}\n").as_bytes())
}

/// Says in a file that it has begun, and waits for another one.
async fn hold(params: Files, context: Context) -> Result<&'static str, Failure> {
    append(&params.path, &std::process::id().to_string())?;
    while !params.go.exists() {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
            () = context.cancelled() => {
                append(&params.path, "cancelled")?;
                return Err(Failure::error("it was canceled"));
            }
        }
    }
    Ok("done")
}

async fn wait(params: Seconds, _: Context) -> Result<&'static str, Failure> {
    tokio::time::sleep(Duration::from_secs_f64(params.seconds)).await;
    Ok("waited")
}

async fn heed(_: Value, context: Context) -> Result<&'static str, Failure> {
    context.cancelled().await;
    Ok("put in order")
}

/// When it was called, in seconds since 1970.
async fn moment(_: Value, _: Context) -> Result<f64, Failure> {
    Ok(SystemTime::UNIX_EPOCH.elapsed()?.as_secs_f64())
}

async fn fail(_: Value, _: Context) -> Result<(), Failure> {
    let details = json!({"tries": [1, 2]});
    Err(Failure::error("boom")
        .of_type("t")
        .code("c")
        .details(details))
}

async fn boom(_: Value, _: Context) -> Result<(), Failure> {
    Err(Failure::error("boom"))
}

async fn size(params: BTreeMap<String, String>, _: Context) -> Result<usize, Failure> {
    Ok(params.values().map(String::len).sum())
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

/// Says in a file that it has begun, and heeds nothing but another one.
fn deaf(params: Files, _: Context) -> Result<(), Failure> {
    append(&params.path, &std::process::id().to_string())?;
    while !params.go.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    let number = |name| std::env::var(name).ok()?.parse::<usize>().ok();
    let most = number("CONCURRENCY").unwrap_or(64);
    let grace = number("GRACE_SECONDS").unwrap_or(5);
    Runner::new()
        .handle("echo", echo)
        .handle("wait", wait)
        .handle("heed", heed)
        .handle("fail", fail)
        .handle("moment", moment)
        .handle("boom", boom)
        .handle("size", size)
        .handle("retry", retry)
        .handle("flaky", flaky)
        .handle("later", later)
        .handle("hold", hold)
        .handle("broken", broken)
        .handle("panics", panics)
        .handle("large", large)
        .handle_blocking("spin", spin)
        .handle_blocking("deaf", deaf)
        .concurrency(most)
        .shutdown_grace(Duration::from_secs(grace as u64))
        .main()
        .await
}
