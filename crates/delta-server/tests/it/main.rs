//! The server over real sockets: every endpoint and every refusal, on the memory store and on
//! SQLite, with timings small enough to wait for.

mod agent;
mod agents_api;
mod artifacts;
mod asked;
mod audit;
mod bench;
mod caches;
mod cancel;
mod certificates;
mod endings;
mod enrolment;
mod events;
mod excess;
mod floods;
mod flows;
mod functions;
mod granting;
mod identity;
mod logs;
mod mtls;
mod oidc;
mod people;
mod refusals;
mod replicas;
mod resent;
mod restart;
mod results;
mod secrets;
mod sessions;
mod sockets;
mod stale;
mod story;
mod system;
mod tail;
mod uploads;
