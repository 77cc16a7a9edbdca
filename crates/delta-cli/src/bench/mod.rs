//! Measuring a real server: a child process (so that its CPU and memory can be told apart), real
//! HTTP/1.1 connections, everything durable.

pub mod child;
pub mod idle;
pub mod jobs;
pub mod lifecycle;
pub mod meter;
pub mod numbers;
pub mod preload;
pub mod wire;
