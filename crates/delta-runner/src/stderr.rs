//! What a runner tells people, on its standard error. Whoever read it may be gone, with the parent:
//! that is no reason to fail.

use std::fmt::Arguments;
use std::io::Write;

pub(crate) fn say(words: Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "delta-runner: {words}");
}
