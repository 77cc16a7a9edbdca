//! The test kit against the real thing: a real PostgreSQL, real sockets, real processes.

mod http_proxy;
mod postgres;
mod postgres_faults;
mod process;
mod proxy;
mod proxy_before_postgres;
mod rng;
mod servers;
mod wait;
