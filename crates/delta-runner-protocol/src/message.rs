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
        let kind = member::given(&envelope, "type")
            .and_then(member::read::<String>)
            .ok_or(Unreadable::NoType)?;
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Messages of each kind as they are written, to be spoiled.
    const GOOD: [&str; 5] = [
        r#"{"type":"request","payload":{"protocol_version":"2","request_id":"r","job_id":"j",
            "function_name":"f","params":{"k":[null,1.5,"\u00e9"]},"context":{"job_id":"j",
            "attempt":1,"enqueue_time":"2026-11-15T19:29:54.444847710Z","queue_name":"q",
            "deadline":"2099-11-15T19:34:54Z","trace_context":{"traceparent":"00-1-2-01"},
            "correlation_context":null,"worker_id":"w","lease_epoch":18446744073709551615}}}"#,
        r#"{"type":"response","payload":{"job_id":"j","request_id":"r","status":"success",
            "result":{"a":1},"error":null,"retry_after_seconds":null}}"#,
        r#"{"type":"response","payload":{"job_id":"j","request_id":"r","status":"retry",
            "error":{"message":"m","type":"t","code":"c","details":[{}]},
            "retry_after_seconds":2.5}}"#,
        r#"{"type":"cancel","payload":{"protocol_version":"2","job_id":"j","request_id":"r",
            "hard_kill":false}}"#,
        r#"{"type":"hello","payload":{}}"#,
    ];

    /// What is read can be written, and is read again as the same.
    fn check(json: &[u8]) {
        let written = match Message::read(json) {
            Ok(Message::Request(Ok(request))) => frame(&request),
            Ok(Message::Cancel(Some(cancel))) => frame(&cancel),
            Ok(Message::Response(response)) => match response.outcome {
                Ok(outcome) => frame(&outcome),
                Err(_) => return,
            },
            _ => return,
        };
        let written = written.expect("it came in a frame");
        let again = Message::read(&written[4..]).expect("a message");
        let good = matches!(
            &again,
            Message::Request(Ok(_)) | Message::Cancel(Some(_)) | Message::Response(_)
        );
        assert!(good, "{again:?}");
    }

    #[test]
    fn the_good_ones_are_good() {
        for text in GOOD {
            let read = Message::read(text.as_bytes()).expect("a message");
            assert!(
                !matches!(read, Message::Request(Err(_)) | Message::Cancel(None)),
                "{text}"
            );
            check(text.as_bytes());
        }
    }

    proptest! {
        // `cargo xtask fuzz` asks for more.
        #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(2000)))]

        #[test]
        fn no_bytes_are_too_much_for_a_reader(json in prop::collection::vec(any::<u8>(), 0..200)) {
            check(&json);
        }

        #[test]
        fn a_message_that_was_spoiled_is_read_or_refused(
            which in 0..GOOD.len(),
            changes in prop::collection::vec(
                (any::<prop::sample::Index>(), 0..4u8, any::<u8>()),
                1..6,
            ),
        ) {
            let mut json = GOOD[which].as_bytes().to_vec();
            for (at, how, byte) in changes {
                let at = at.index(json.len().max(1)).min(json.len());
                match how {
                    0 if at < json.len() => json[at] = byte,
                    1 if at < json.len() => drop(json.remove(at)),
                    2 => json.insert(at, byte),
                    // A piece of it twice: members that are there again, deeper or not.
                    _ => {
                        let end = (at + usize::from(byte)).min(json.len());
                        let piece = json[at..end].to_vec();
                        json.splice(at..at, piece);
                    }
                }
            }
            check(&json);
        }
    }
}
