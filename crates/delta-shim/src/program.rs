//! How a shim is started: the program, and the word that makes it one.

use std::ffi::OsString;
use std::path::PathBuf;

/// The word on the command line that makes this program a shim.
pub const SUBCOMMAND: &str = "shim";

/// How a shim is started.
#[derive(Debug, Clone)]
pub struct ShimProgram {
    pub program: PathBuf,
    /// In front of the state folder.
    pub arguments: Vec<OsString>,
}

impl ShimProgram {
    /// This very program, also when its file has been replaced meanwhile.
    pub fn this() -> ShimProgram {
        ShimProgram {
            program: "/proc/self/exe".into(),
            arguments: vec![SUBCOMMAND.into()],
        }
    }
}
