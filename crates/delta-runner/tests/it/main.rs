//! A runner as a worker meets it: a process of its own, on a real socket.

mod life;
mod process;
mod table;
mod wire;
