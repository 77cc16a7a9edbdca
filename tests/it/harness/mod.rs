//! What the tests stand on: a real server, people, runners, load, and what must hold afterwards.

pub mod history;
pub mod http;
pub mod load;
pub mod person;
pub mod runner;
pub mod server;

pub use history::walk;
pub use http::Http;
pub use load::{Load, Shape};
pub use person::{Person, job, jobs, until};
pub use runner::{Grant, Runner};
pub use server::{Options, Server, delta_ci, secret_in};
