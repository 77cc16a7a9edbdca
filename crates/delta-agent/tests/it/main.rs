//! The agent from outside: real processes and real sockets.

mod bench;
mod process;
