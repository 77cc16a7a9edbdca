//! Ctrl-C, SIGTERM and SIGUSR2, and where the program's own log goes.

use std::io::IsTerminal;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::terminal::Terminal;

/// Asks to stop: SIGINT from a person, SIGTERM from a supervisor.
pub struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    pub fn listen() -> Result<Stop, Failure> {
        Ok(Stop {
            interrupt: open(SignalKind::interrupt())?,
            terminate: open(SignalKind::terminate())?,
        })
    }

    /// Returns at the next one.
    pub async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Asks to go and leave running jobs to the next agent: SIGUSR2.
pub struct HandOver {
    signal: Signal,
}

impl HandOver {
    pub fn listen() -> Result<HandOver, Failure> {
        let signal = open(SignalKind::user_defined2())?;
        Ok(HandOver { signal })
    }

    /// Returns at the next one.
    pub async fn asked(&mut self) {
        if self.signal.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

fn open(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| {
        Failure::new(Exit::Internal, "cannot listen for signals").caused_by(&error)
    })
}

/// What the command says without being asked, more with `-v`. Its level can be set in detail by
/// RUST_LOG. What runners of functions say on their standard error is shown.
pub fn log_to_stderr(terminal: &Terminal, verbose: u8, unasked: &str) {
    let level = match verbose {
        0 => &format!(
            "{unasked},{}=info",
            delta_agent::functions::runner_output::TARGET
        ),
        1 => "info",
        _ => "debug,hyper=info,h2=info,rustls=info",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(terminal.colour_err() && std::io::stderr().is_terminal());
    // A test harness may have set one already; then that one stays.
    let _ = if terminal.json {
        builder.json().try_init()
    } else {
        builder.try_init()
    };
}
