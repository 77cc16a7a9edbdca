//! Functions in Rust for Delta CI, or for any worker that speaks the RRQ Runner Protocol v2.
//!
//! ```no_run
//! use delta_runner::{Context, Failure, Runner};
//!
//! #[derive(serde::Deserialize)]
//! struct Mail {
//!     to: String,
//! }
//!
//! async fn send(mail: Mail, context: Context) -> Result<String, Failure> {
//!     if mail.to.is_empty() {
//!         return Err(Failure::error("nobody to send it to").of_type("bad_address"));
//!     }
//!     Ok(format!("sent to {}, attempt {}", mail.to, context.attempt))
//! }
//!
//! #[tokio::main]
//! async fn main() -> std::process::ExitCode {
//!     Runner::new().handle("send_email", send).main().await
//! }
//! ```
//!
//! The caller decides about retries, deadlines and cancels; a function may stop early when it is
//! canceled ([`Context::cancelled`]), ask to be tried again ([`Failure::retry`]), and say what went
//! wrong in words that policy can use. A runner listens on the loopback alone, where
//! `RRQ_RUNNER_TCP_SOCKET` or `--tcp-socket` says, logs to its standard error, and ends with its
//! parent.
//!
//! With the feature `otel`, each call is a span `rrq.runner` of the application's OpenTelemetry,
//! below the producer's; without a tracer provider it is nothing.
//!
//! The other side, a program that calls functions and waits for what they return, is [`client`].

mod address;
mod call;
#[cfg(feature = "client")]
pub mod client;
mod connection;
mod context;
mod end_signal;
mod failure;
mod handlers;
mod runner;
#[cfg_attr(not(feature = "otel"), path = "no_span.rs")]
mod span;
mod stderr;
mod turn;

/// The examples of the README compile.
#[cfg(all(doctest, feature = "client"))]
#[doc = include_str!("../README.md")]
struct Readme;

pub use address::{AddressError, Socket};
pub use context::Context;
pub use failure::Failure;
pub use runner::{Runner, RunnerError};
#[cfg(feature = "otel")]
pub use span::current_trace;
