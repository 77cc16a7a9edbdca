//! Everything that crosses a wire: the Runner Protocol's messages, the people's API, job specs,
//! times and durations.
//!
//! This crate owns spelling, bounds and the words of a refusal. It decides nothing: whether a
//! lease is alive or a run may be canceled is the core's business. What comes in is read field by
//! field ([`fields`]), so that every refusal names the field; what goes out is serialised by serde.

pub mod agent;
pub mod answer;
pub mod api;
mod convert;
pub mod duration;
pub mod error;
pub mod evidence;
pub mod fields;
pub mod invalid;
pub mod job_spec;
pub mod nearest;
pub mod openapi;
pub mod own_folder;
pub mod places;
pub mod planning;
pub mod runner;
pub mod seconds;
mod secret;
pub mod shell;
pub mod states;
pub mod step;
pub mod time;

pub use answer::{FunctionAnswer, FunctionError, JsonText};
pub use error::{ErrorBody, ErrorCode};
pub use evidence::Evidence;
pub use invalid::{Invalid, Problems};
pub use job_spec::{JobSpec, RawJobSpec};
pub use seconds::Seconds;
pub use secret::Secret;
pub use shell::Shell;
pub use step::{StepResult, StepSpec};
pub use time::Millis;
