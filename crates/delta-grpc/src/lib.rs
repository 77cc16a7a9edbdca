//! Sessions of the Execution Protocol over gRPC: how frames are put on the stream and taken off
//! it ([`codec`]), and how an agent opens its call ([`dial`]).
//!
//! What a frame holds is `delta-wire`'s, which knows no network: whoever plans or carries out a job
//! needs the messages and not the line. Who connects, with which credential, and what an end means
//! is the callers'.

pub mod codec;
pub mod dial;
