//! Reports of real tools, hostile ones, and the promise that whatever comes in is bounded.

mod along;
mod bombs;
mod bounds;
mod broken;
mod dialects;
mod fuzz;
mod hostile;
mod mutate;
mod real;

use delta_results::{Case, Format, Limits, Report, read};

pub fn cases(format: Format, bytes: &[u8]) -> (Vec<Case>, Report) {
    let mut found = Vec::new();
    let report = read(
        format,
        bytes,
        "/build/app",
        &Limits::default(),
        &mut |case| found.push(case),
    );
    (found, report)
}
