//! For tests only: real PostgreSQL, real dockerd, real Redis and RRQ, packages of Python and npm,
//! git over HTTP and SSH, a recording forge, a small disk, little memory, a fault proxy, process
//! helpers.
//!
//! What a test starts here ends with the test: on drop, when the test process exits, and when it
//! is killed. Nothing here knows another crate of the workspace, and nothing is skipped: a part
//! that is missing on the machine is an error that says how to install it.

pub mod disk;
pub mod docker;
pub mod forge;
pub mod git;
pub mod memory;
mod mortal_children;
pub mod node;
pub mod port;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod python;
pub mod redis;
pub mod rng;
pub mod root;
pub mod rrq;
pub mod wait;
