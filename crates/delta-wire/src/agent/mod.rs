//! The Execution Protocol: the messages of `protocol/agent/v1/agent.proto`, and the frames that
//! carry them.
//!
//! Messages come in as bytes and are read one by one ([`frame`]), so that one that is garbled or
//! unknown costs nobody else anything (A36). What a message means is the server's business.

pub mod frame;
pub mod process_header;

/// The messages, generated.
#[allow(clippy::all, missing_docs)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/delta.agent.v1.rs"));
}

/// The schema as a descriptor set, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.bin"));

/// The path of the one call.
pub const SESSION_PATH: &str = "/delta.agent.v1.AgentService/Session";
/// The service, as health checks name it.
pub const SERVICE: &str = "delta.agent.v1.AgentService";

/// What we speak. Another major version is refused, any minor one accepted.
pub const PROTOCOL_VERSION: &str = "1.0";
pub const PROTOCOL_MAJOR: u32 = 1;

/// Bytes of one frame: a job spec of 1 MiB or a chunk of log, with room; more than this is no
/// honest frame (T22).
pub const MAX_FRAME_BYTES: usize = 4 * 1024 * 1024;
/// Messages of one frame: a batch of the writer, several times over.
pub const MAX_FRAME_MESSAGES: usize = 4096;
/// Slots of one agent: more jobs than one machine runs.
pub const MAX_PARALLEL: u32 = 1024;
/// Bytes of one chunk of a log, such that a heartbeat behind it is not late.
pub const MAX_CHUNK_BYTES: usize = 256 * 1024;
