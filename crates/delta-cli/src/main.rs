//! The `delta-ci` binary.

fn main() {}
