//! The test kit against the real thing: a real PostgreSQL, real sockets, real processes.

mod postgres;
mod postgres_faults;
mod process;
mod rng;
mod wait;
