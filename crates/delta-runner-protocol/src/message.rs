//! Envelopes: what a frame is, and what is in it (RQ-4, RQ-11, RQ-12).

use serde::Serialize;

use crate::cancel::CancelRequest;
use crate::frames::{self, MAX_FRAME_BYTES};
use crate::member::{self, Members};
use crate::outcome::{Outcome, Response};
use crate::request::{ExecutionRequest, RefusedRequest};

/// What a frame says.
#[derive(Debug)]
pub enum Message {
    Request(Result<ExecutionRequest, RefusedRequest>),
    Response(Response),
    /// Nothing where it cannot be meant for anybody; it has no answer either way.
    Cancel(Option<CancelRequest>),
    /// Of a later version: counted, and otherwise ignored.
    Unknown(String),
}

/// No message of this protocol: whoever sends it is not to be understood, and its connection ends.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    #[error("a frame is no JSON object")]
    NoObject,
    #[error("a message has no type")]
    NoType,
    #[error("a message has no payload")]
    NoPayload,
}

/// A message that no frame can hold.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message is larger than {MAX_FRAME_BYTES} bytes")]
pub struct TooLarge;

impl Message {
    /// Reads the JSON of one frame.
    pub fn read(json: &[u8]) -> Result<Message, Unreadable> {
        let envelope: Members<'_> =
            serde_json::from_slice(json).map_err(|_| Unreadable::NoObject)?;
        let kind = member::given(&envelope, "type").and_then(member::read::<String>);
        let kind = kind.ok_or(Unreadable::NoType)?;
        let payload = member::given(&envelope, "payload").ok_or(Unreadable::NoPayload)?;
        Ok(match kind.as_str() {
            "request" => Message::Request(ExecutionRequest::read(payload)),
            "response" => Message::Response(Response::read(payload)),
            "cancel" => Message::Cancel(CancelRequest::read(payload)),
            _ => Message::Unknown(kind),
        })
    }
}

/// What can be sent.
pub trait Sent: private::Written {}

impl Sent for ExecutionRequest {}
impl Sent for CancelRequest {}
impl Sent for Outcome {}

mod private {
    use super::{CancelRequest, ExecutionRequest, Outcome, Serialize};

    pub trait Written {
        const TYPE: &'static str;
        fn payload(&self) -> impl Serialize + '_;
    }

    impl Written for ExecutionRequest {
        const TYPE: &'static str = "request";
        fn payload(&self) -> impl Serialize + '_ {
            self.written()
        }
    }

    impl Written for CancelRequest {
        const TYPE: &'static str = "cancel";
        fn payload(&self) -> impl Serialize + '_ {
            self.written()
        }
    }

    impl Written for Outcome {
        const TYPE: &'static str = "response";
        fn payload(&self) -> impl Serialize + '_ {
            self
        }
    }
}

#[derive(Serialize)]
struct Out<P> {
    #[serde(rename = "type")]
    kind: &'static str,
    payload: P,
}

/// The frame of a message.
pub fn frame<M: Sent>(message: &M) -> Result<Vec<u8>, TooLarge> {
    let out = Out {
        kind: M::TYPE,
        payload: message.payload(),
    };
    // Texts and numbers alone: nothing in it can fail but its size.
    let json = serde_json::to_vec(&out).map_err(|_| TooLarge)?;
    frames::of(&json).ok_or(TooLarge)
}
