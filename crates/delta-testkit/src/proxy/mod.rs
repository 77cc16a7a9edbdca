//! Fault proxies: between a client and a real server, doing what networks do.
//!
//! [`Proxy`] knows bytes and connections and stands before anything, PostgreSQL included.
//! [`HttpProxy`] knows requests and answers, [`GrpcProxy`] the messages of a call that streams both
//! ways. They can stand in a row. All listen on a loopback
//! port, run on a thread of their own (a test that blocks does not stop them), are told what to
//! do at run time, draw every random decision from one seed, and write each fault down: see
//! [`Journal`]. A fault that cannot happen to a TCP stream, as a hole in the middle of it, is
//! offered by none but the last, which says why.

mod door;
mod gate;
mod grpc;
mod grpc_lane;
mod http;
mod http_connection;
mod http_message;
mod http_rules;
mod journal;
mod lane;
mod pump;
mod tcp;
mod trap;

pub use self::gate::Held;
pub use self::grpc::GrpcProxy;
pub use self::grpc_lane::GrpcChances;
pub use self::http::HttpProxy;
pub use self::http_rules::HttpChances;
pub use self::journal::Journal;
pub use self::lane::Direction;
pub use self::tcp::{CommitCut, Proxy};
pub use self::trap::{Then, Trap, When};
