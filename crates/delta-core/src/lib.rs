//! Delta CI's core: runs, jobs, attempts and leases as pure state machines.
//!
//! Owns every rule that changes state. Refuses to know about clocks, randomness, threads, files,
//! sockets, encodings or databases: the present moment, fresh ids, token hashes and jitter come in
//! as arguments, and what must be stored goes out as [`Fact`]s and rows. The same functions run in
//! the server, in the simulator and in the model checker.
//!
//! Reading order: the three machines ([`run`], [`attempt`], [`lease`]), what a job may do
//! ([`policy`], [`cause`], [`requirement`], [`tool`], [`group`]), what can be asked ([`command`]),
//! how it is decided ([`decide`]) against a [`world`], who may use a lease ([`rights`]), and the
//! other side of one ([`holder`]).

#![forbid(unsafe_code)]

pub mod attempt;
pub mod cause;
pub mod command;
pub mod deadlines;
pub mod decide;
pub mod fact;
pub mod group;
pub mod holder;
pub mod id;
pub mod job;
pub mod lease;
pub mod matrix;
pub mod policy;
pub mod requirement;
pub mod rights;
pub mod run;
pub mod settings;
pub mod time;
pub mod tool;
pub mod why;
pub mod world;

pub use attempt::{Attempt, AttemptEvent, AttemptState};
pub use cause::{Cause, Class};
pub use command::{Command, Context, Refusal, Reply};
pub use decide::{Decision, Stop, decide};
pub use fact::{Fact, Record};
pub use group::{Concurrency, Member, Place};
pub use id::{AttemptId, JobId, LeaseKey, RunId};
pub use job::{Job, Resolution};
pub use lease::{Lease, LeaseEvent, LeaseState};
pub use policy::Policy;
pub use rights::AgentStanding;
pub use run::{Run, RunEvent, RunState};
pub use settings::Settings;
pub use time::{Millis, Span};
pub use world::{Want, World};

/// Shared immutable text: names, principals and reasons are copied into many rows of a batch.
pub type Text = std::sync::Arc<str>;

/// A SHA-256 digest, taken outside; the core only compares.
pub type Digest = [u8; 32];
