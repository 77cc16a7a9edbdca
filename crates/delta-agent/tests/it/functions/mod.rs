//! Function jobs: the agent's side of the RRQ Runner Protocol against runners that behave, and
//! against one that does not.

mod agent;
mod bench;
mod life;
mod peers;
mod stops;
mod wire;
