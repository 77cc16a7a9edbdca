//! The agent from outside: real processes and real sockets.

mod bench;
mod fake_server;
mod lease;
mod process;
mod shim;
mod tls;
mod trouble;
