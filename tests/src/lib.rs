//! End to end: real binaries, real sockets, kill -9.
