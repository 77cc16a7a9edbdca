//! The model checker and the simulator, as tests.

mod model;
