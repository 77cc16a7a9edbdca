//! End to end: the real binary on real sockets, with faults.

mod agent_py;
mod canaries;
mod causes;
mod checkout;
mod clocks;
mod containers;
mod faults_agent;
mod faults_postgres;
mod faults_runner;
mod faults_server;
mod functions;
mod handover;
mod harness;
mod hostile;
mod kept;
mod kills;
mod partitions;
mod project;
mod results;
mod rrq;
mod sandbox;
mod sdk_python;
mod secrets;
mod shuffled;
mod tracing;
mod traffic;
