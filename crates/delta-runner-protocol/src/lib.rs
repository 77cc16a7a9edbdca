//! The RRQ Runner Protocol, version 2: what an agent and a language runner say to each other over a
//! loopback socket.
//!
//! [`Frames`] cuts a stream of bytes into frames, [`Message::read`] says what a frame means, and
//! [`frame`] makes one. No socket, no clock and no task is in here: whoever drives it brings those.
//!
//! Reading is strict about what decides (versions, ids, the shape of parameters) and lenient about
//! the rest: fields it does not know are left out, nulls and absent fields are the same. A message
//! that is wrong in itself names the request it is about wherever that can be read, so that it
//! hurts no other. The vectors in `protocol/runner/v2` hold for every language.

mod cancel;
mod frames;
mod member;
mod message;
mod outcome;
mod request;

pub use cancel::CancelRequest;
pub use frames::{FrameError, Frames, MAX_FRAME_BYTES};
pub use message::{Message, TooLarge, Unreadable, frame};
pub use outcome::{ErrorInfo, Outcome, Response, RetryAfter, Status};
pub use request::{Context, ExecutionRequest, RefusedRequest};

/// What both sides must speak (RQ-1, RQ-19).
pub const PROTOCOL_VERSION: &str = "2";

/// Where a runner is told to listen, as `host:port`; also given as `--tcp-socket`.
pub const SOCKET_VARIABLE: &str = "RRQ_RUNNER_TCP_SOCKET";
/// How a runner is told on its command line where to listen; newer runners read this alone.
pub const SOCKET_FLAG: &str = "--tcp-socket";

/// The type of an error that no retry can help: nobody handles that function (RQ-37).
pub const HANDLER_NOT_FOUND: &str = "handler_not_found";

/// The type of the error with which a runner that is about to end hands a request back: nothing of
/// it was begun.
pub const SHUTTING_DOWN: &str = "shutting_down";
/// The type of an error after a cancel (RQ-43).
pub const CANCELLED: &str = "cancelled";
/// The type of an error about a request whose id is that of another in flight (RQ-20).
pub const DUPLICATE_REQUEST: &str = "duplicate_request";
/// The type of an error of a runner that ended its own work.
pub const TIMEOUT: &str = "timeout";

/// What runners of RRQ answer beyond 64 requests on one connection: an error without a type.
pub const BUSY: &str = "Runner busy: too many in-flight requests";

/// Splits `runner#handler` at the first `#`; without one there is no runner in it (RQ-45).
pub fn split_function(name: &str) -> (Option<&str>, &str) {
    match name.split_once('#') {
        Some((runner, handler)) => (Some(runner), handler),
        None => (None, name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // RQ-45
    #[test]
    fn a_function_names_its_runner_before_the_first_hash() {
        assert_eq!(split_function("a#b#c"), (Some("a"), "b#c"));
        assert_eq!(split_function("b"), (None, "b"));
        assert_eq!(split_function("#b"), (Some(""), "b"));
    }
}
