//! Whoever listens for long is judged again now and then: a credential that was revoked or has
//! expired, and a lease that gives the right no more, end a stream within a minute (D14).

use std::io;
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use delta_core::rights::Right;
use delta_wire::ErrorCode;
use delta_wire::runner::LeaseToken;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Instant;

use super::error::ApiError;
use super::extract::{Caller, next_piece};
use super::pieces;
use super::uploads::held;
use crate::app::App;
use crate::audit;
use crate::identity::{Principal, Standing};

/// How often: well within the minute. A look is one row, or none while it is remembered.
const EVERY: Duration = Duration::from_secs(5);

pub struct Vigil {
    who: Principal,
    next: Instant,
}

impl Vigil {
    pub fn new(who: Principal) -> Vigil {
        Vigil {
            who,
            next: Instant::now() + EVERY,
        }
    }

    /// When to look again, for those who sleep meanwhile.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Whether the stream must end. Costs nothing between two looks. A store that is away says
    /// nothing about the credential.
    pub async fn is_over(&mut self, app: &App) -> bool {
        if Instant::now() < self.next {
            return false;
        }
        self.next = Instant::now() + EVERY;
        let standing = app.identity.recheck(&self.who, app.writer.now()).await;
        match standing {
            Ok(Standing::Good) | Err(_) => false,
            Ok(ended) => {
                audit::ended(&self.who, ended.why());
                true
            }
        }
    }
}

/// Bytes that are read at a time for one reader.
const PIECE_BYTES: usize = 256 * 1024;

/// What comes next of a body that is taken under a lease.
pub enum BodyPiece {
    Bytes(Bytes),
    End,
    /// The lease gives the right to send it no more: nothing of it is wanted, not even to be read.
    RightGone,
}

/// The lease under which a long answer is given, or a long body taken.
pub struct LeaseVigil {
    app: App,
    token: LeaseToken,
    who: Caller,
    right: Right,
    next: Instant,
}

impl LeaseVigil {
    pub fn new(app: &App, token: LeaseToken, who: &Caller, right: Right) -> LeaseVigil {
        LeaseVigil {
            app: app.clone(),
            token,
            who: who.clone(),
            right,
            next: Instant::now() + EVERY,
        }
    }

    /// A body of so many bytes, which breaks off when the lease gives the right to it no more.
    pub fn body(self, length: u64, from: impl AsyncRead + Unpin + Send + 'static) -> Body {
        let (pieces, body) = pieces::body(Some(length));
        tokio::spawn(self.send(from, pieces));
        body
    }

    async fn send(mut self, mut from: impl AsyncRead + Unpin, pieces: pieces::Sender) {
        loop {
            let mut piece = BytesMut::with_capacity(PIECE_BYTES);
            let next = match from.read_buf(&mut piece).await {
                Ok(0) => return,
                Ok(_) if self.is_over().await => Err(io::ErrorKind::PermissionDenied.into()),
                Ok(_) => Ok(piece.freeze()),
                Err(error) => Err(error),
            };
            let broken = next.is_err();
            if pieces.send(next).await.is_err() || broken {
                return;
            }
        }
    }

    /// The next piece of a body that is taken under the lease. A sender that falls silent is not
    /// waited for, so that a look is never far away.
    pub async fn next_piece(&mut self, body: &mut Body) -> Result<BodyPiece, ApiError> {
        match next_piece(body).await? {
            None => Ok(BodyPiece::End),
            Some(_) if self.is_over().await => Ok(BodyPiece::RightGone),
            Some(bytes) => Ok(BodyPiece::Bytes(bytes)),
        }
    }

    /// Whether the right is gone. A store that is away says nothing about it.
    async fn is_over(&mut self) -> bool {
        if Instant::now() < self.next {
            return false;
        }
        self.next = Instant::now() + EVERY;
        match held(&self.app, &self.token, &self.who, None, self.right).await {
            Ok(still) => still.is_err(),
            Err(error) => !matches!(error.code, ErrorCode::Unavailable | ErrorCode::Internal),
        }
    }
}
