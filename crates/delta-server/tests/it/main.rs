//! The server over real sockets: every endpoint and every refusal, on the memory store and on
//! SQLite, with timings small enough to wait for.

mod bench;
mod story;
