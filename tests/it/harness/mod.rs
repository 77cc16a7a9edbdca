//! What the tests stand on: a real server, people, runners, load, and what must hold afterwards.

pub mod collector;
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

/// A count of which a storm wants more: what it says in this variable, otherwise enough for a test.
pub fn storm_count(variable: &str, otherwise: u32) -> u32 {
    let storm = std::env::var("DELTA_STORM").is_ok_and(|it| it == "1");
    let wanted = std::env::var(variable).ok().filter(|_| storm);
    let number = |text: String| text.parse().ok();
    wanted.map_or(otherwise, |text| {
        number(text).unwrap_or_else(|| panic!("{variable} is a number"))
    })
}
