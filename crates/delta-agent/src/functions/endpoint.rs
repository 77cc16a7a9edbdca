//! The way in to one runner. Behind that of a process of ours stands nobody else: before the first
//! byte, whoever took the connection is proven to be that process. The one of somebody else
//! has no proof; its address was given by the operator.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::port_owner::{Listener, Owner, whose};
use super::serial_connection::{RunnerCallError, broken};

/// How long a process on this machine may take to let us in: its queue is full, or it is stopped.
const DIAL_TIME: Duration = Duration::from_secs(10);
/// Looks for the other end of a connection that is there, and the pause between them: a table that
/// changes while it is read may leave a row out.
const LOOKS: u32 = 5;
const LOOK_PAUSE: Duration = Duration::from_millis(10);

#[derive(Clone, Debug)]
pub(super) struct RunnerEndpoint {
    pub address: SocketAddr,
    /// The process of ours that must be behind it.
    pub owner: Option<Owner>,
}

impl RunnerEndpoint {
    /// A connection to whom it should be, and nothing said on it.
    pub async fn dial(&self) -> Result<TcpStream, RunnerCallError> {
        let stream = match timeout(DIAL_TIME, TcpStream::connect(self.address)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(problem)) => return Err(RunnerCallError::NotSent(problem.to_string())),
            Err(_) => return Err(RunnerCallError::NotSent("it lets nobody in".to_owned())),
        };
        if let Some(owner) = &self.owner {
            self.prove(&stream, owner)
                .await
                .map_err(RunnerCallError::NotSent)?;
        }
        // Requests are small, and each is awaited.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }

    async fn prove(&self, stream: &TcpStream, owner: &Owner) -> Result<(), String> {
        let there = self.address;
        let here = stream.local_addr().map_err(|problem| problem.to_string())?;
        let mut looks = 0;
        loop {
            looks += 1;
            let owner = owner.clone();
            let look = tokio::task::spawn_blocking(move || whose(here, there, &owner)).await;
            let found = look.map_err(|problem| problem.to_string())?;
            match found.map_err(|problem| format!("nobody can say who listens: {problem}"))? {
                Listener::Ours => return Ok(()),
                Listener::Nobody if looks < LOOKS => sleep(LOOK_PAUSE).await,
                Listener::Nobody => return Err("it let us in and closed".to_owned()),
                Listener::Foreign => return Err(format!("somebody else is at {there}")),
                Listener::Open => return Err("it listens for everybody".to_owned()),
            }
        }
    }

    /// Says something on a connection of its own, for which there is no answer (RQ-16).
    pub async fn say(&self, frame: &[u8]) -> Result<(), RunnerCallError> {
        let mut stream = self.dial().await?;
        stream.write_all(frame).await.map_err(broken)?;
        stream.shutdown().await.map_err(broken)
    }
}
