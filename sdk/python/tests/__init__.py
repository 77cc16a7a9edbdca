"""Tests of the runner: the shared vectors, and a real process over real loopback sockets."""
