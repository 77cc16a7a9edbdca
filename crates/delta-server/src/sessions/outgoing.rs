//! What a session has to say, in frames: as many messages as fit, in order, renewals together.
//!
//! Owns the size of frames, and the proof of delivery of grants: a frame that no connection takes
//! takes its grants back.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use delta_wire::agent::proto::server_message::Message as ToAgent;
use delta_wire::agent::proto::{HeartbeatAck, LeaseRenewalAck, ServerFrame, ServerMessage};
use prost::Message as _;
use tokio::sync::mpsc;
use tonic::Status;
use tonic::codegen::tokio_stream::Stream;

use crate::writer::Delivery;

/// Bytes after which a frame is closed: a job spec is at most a few times this.
const FRAME_BYTES: usize = 512 * 1024;
/// Messages of one frame: what one batch of the writer brings.
const FRAME_MESSAGES: usize = 512;
/// Renewals of one frame: an agent that is well has one per slot.
const FRAME_RENEWALS: usize = 2_048;
/// Frames on their way to the connection: one being sent and one behind it.
pub const FRAMES_AHEAD: usize = 2;
/// Messages that wait to be sent while the agent does not read. It is not listened to beyond
/// that, since every message of it has an answer.
pub const MAX_WAITING: usize = 8_192;

/// Messages that wait at a time where little is said: no room is kept for them.
const FEW: usize = 4;

/// A frame for the connection, boxed on its way: room for many is kept there.
pub struct Frame {
    pub frame: ServerFrame,
    pub deliveries: Vec<Delivery>,
}

/// What waits to be sent.
#[derive(Default)]
pub struct Outgoing {
    waiting: VecDeque<(ToAgent, Option<Delivery>)>,
    renewals: Vec<LeaseRenewalAck>,
}

impl Outgoing {
    pub fn say(&mut self, say: ToAgent) {
        self.waiting.push_back((say, None));
    }

    /// Says something that carries a grant.
    pub fn assign(&mut self, say: ToAgent, delivery: Delivery) {
        self.waiting.push_back((say, Some(delivery)));
    }

    /// Renewals go first and together: they are what keeps work alive.
    pub fn renewed(&mut self, ack: LeaseRenewalAck) {
        self.renewals.push(ack);
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.renewals.is_empty()
    }

    pub fn len(&self) -> usize {
        self.waiting.len() + self.renewals.len()
    }

    /// The next frame; an empty one when there is nothing to say.
    pub fn frame(&mut self) -> Frame {
        let (mut messages, mut deliveries, mut bytes) = (Vec::new(), Vec::new(), 0);
        if !self.renewals.is_empty() {
            let rest = self
                .renewals
                .split_off(self.renewals.len().min(FRAME_RENEWALS));
            let leases = std::mem::replace(&mut self.renewals, rest);
            messages.push(message(ToAgent::HeartbeatAck(HeartbeatAck { leases })));
        }
        while messages.len() < FRAME_MESSAGES && bytes < FRAME_BYTES {
            let Some((say, delivery)) = self.waiting.pop_front() else {
                break;
            };
            let said = message(say);
            bytes += said.encoded_len();
            messages.push(said);
            deliveries.extend(delivery);
        }
        if self.waiting.is_empty() && self.waiting.capacity() <= FEW {
            // Most sessions have nothing to say for most of the time.
            self.waiting = VecDeque::new();
        }
        Frame {
            frame: ServerFrame { messages },
            deliveries,
        }
    }
}

fn message(say: ToAgent) -> ServerMessage {
    ServerMessage { message: Some(say) }
}

/// The frames as the connection takes them.
pub struct Frames(pub mpsc::Receiver<Result<Box<Frame>, Status>>);

impl Stream for Frames {
    type Item = Result<ServerFrame, Status>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<ServerFrame, Status>>> {
        self.0.poll_recv(context).map(|next| {
            next.map(|frame| {
                frame.map(|frame| {
                    frame.deliveries.into_iter().for_each(Delivery::delivered);
                    frame.frame
                })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use delta_wire::agent::proto::{AssignWork, Drain};

    #[test]
    fn renewals_come_first_and_together_and_large_frames_are_split() {
        let mut outgoing = Outgoing::default();
        for n in 0..3 {
            let job_spec = "x".repeat(FRAME_BYTES * 2 / 3);
            outgoing.say(ToAgent::AssignWork(AssignWork {
                run_id: n.to_string(),
                job_spec,
                ..Default::default()
            }));
        }
        outgoing.say(ToAgent::Drain(Drain::default()));
        outgoing.renewed(LeaseRenewalAck::default());
        outgoing.renewed(LeaseRenewalAck::default());
        let first = outgoing.frame().frame.messages;
        assert!(
            matches!(&first[0].message, Some(ToAgent::HeartbeatAck(ack)) if ack.leases.len() == 2)
        );
        assert_eq!(first.len(), 3);
        assert_eq!(outgoing.frame().frame.messages.len(), 2);
        assert!(outgoing.is_empty() && outgoing.frame().frame.messages.is_empty());
    }
}
