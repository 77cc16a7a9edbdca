//! The wire crate seen from outside: golden vectors against code and schemas, and requests of the
//! people's API.

mod agent_schema;
mod agent_vectors;
mod create_run;
mod described;
mod vectors;
