//! A body that comes piece by piece from a task of its own: at most a few pieces wait for a slow
//! reader, and then the task does.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::sync::mpsc;

/// Pieces that wait for a reader: one that is on its way, and one that is ready.
const WAITING: usize = 2;

/// Why a body broke off. The reader sees a connection that ended early.
pub type Broken = std::io::Error;

/// Where the pieces go in.
pub type Sender = mpsc::Sender<Result<Bytes, Broken>>;

struct Pieces {
    receiver: mpsc::Receiver<Result<Bytes, Broken>>,
    /// Bytes still to come, where that is known.
    left: Option<u64>,
}

/// A body, and where to put its pieces. With a length, it must come to exactly that.
pub fn body(length: Option<u64>) -> (Sender, Body) {
    let (sender, receiver) = mpsc::channel(WAITING);
    let pieces = Pieces {
        receiver,
        left: length,
    };
    (sender, Body::new(pieces))
}

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let piece = std::task::ready!(self.receiver.poll_recv(context));
        if let (Some(Ok(piece)), Some(left)) = (&piece, &mut self.left) {
            *left = left.saturating_sub(piece.len() as u64);
        }
        Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}
