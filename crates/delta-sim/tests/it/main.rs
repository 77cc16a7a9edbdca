//! The model checker and the simulator, as tests.

mod bugs;
mod model;
mod seeds;
