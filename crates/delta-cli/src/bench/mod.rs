//! Measuring a real server: a child process (so that its CPU and memory can be told apart), real
//! connections, everything durable.

pub mod agents;
pub mod builds;
pub mod child;
pub mod functions;
pub mod idle;
pub mod jobs;
pub mod lifecycle;
pub mod local;
pub mod logs;
pub mod masked;
pub mod meter;
pub mod numbers;
pub mod plan;
pub mod preload;
pub mod session;
pub mod wire;
