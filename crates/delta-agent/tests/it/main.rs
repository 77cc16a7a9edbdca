//! The agent from outside: real processes and real sockets.

mod agent;
mod assignment;
mod bench;
mod causes;
mod connection;
mod container;
mod container_ends;
mod container_ready;
mod container_refused;
mod fake_server;
mod flow;
mod functions;
mod groups;
mod lease;
mod printed_tests;
mod process;
mod results;
mod shim;
mod strangers;
mod tls;
mod trouble;
