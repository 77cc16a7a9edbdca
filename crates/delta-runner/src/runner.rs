//! A runner: its functions, its limits, and its life on a socket.

use std::future::Future;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpListener;

use crate::address::{AddressError, Socket};
use crate::connection::{self, Shared};
use crate::context::Context;
use crate::end_signal::{Life, Why};
use crate::failure::Failure;
use crate::handlers::Handlers;
use crate::stderr::say;

/// Functions at once, where nobody says otherwise: as many as a worker has in flight.
const CONCURRENCY: usize = 64;
/// How long what runs may go on after SIGTERM.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(30);
/// How long calls that were ended then may take to notice, and the last answers to be taken.
const LAST_MOMENT: Duration = Duration::from_secs(1);
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Between two tries to accept where the machine has no more files.
const PAUSE: Duration = Duration::from_millis(100);

/// Functions by name, called over a socket.
pub struct Runner {
    handlers: Handlers,
    concurrency: usize,
    shutdown_grace: Duration,
}

/// Why a runner could not run.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("cannot listen on {0}: {1}")]
    Listen(std::net::SocketAddr, io::Error),
    #[error("cannot hear of signals: {0}")]
    Signals(io::Error),
}

impl Default for Runner {
    fn default() -> Runner {
        Runner::new()
    }
}

impl Runner {
    pub fn new() -> Runner {
        Runner {
            handlers: Handlers::default(),
            concurrency: CONCURRENCY,
            shutdown_grace: SHUTDOWN_GRACE,
        }
    }

    /// Adds a function. Parameters are any type that reads from an object, results any that
    /// writes as JSON.
    #[must_use]
    pub fn handle<P, T, F, R>(mut self, name: &str, function: F) -> Runner
    where
        P: DeserializeOwned + Send + 'static,
        T: Serialize,
        F: Fn(P, Context) -> R + Send + Sync + 'static,
        R: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        self.handlers.add(name, function);
        self
    }

    /// Adds a function that does not wait, on a thread of its own. It cannot be ended from outside:
    /// it looks at [`Context::is_cancelled`]. One that does not is never answered, and its caller
    /// ends this process when its grace is over.
    #[must_use]
    pub fn handle_blocking<P, T, F>(mut self, name: &str, function: F) -> Runner
    where
        P: DeserializeOwned + Send + 'static,
        T: Serialize + Send + 'static,
        F: Fn(P, Context) -> Result<T, Failure> + Send + Sync + 'static,
    {
        self.handlers.add_blocking(name, function);
        self
    }

    /// Functions that run at once; further calls wait.
    #[must_use]
    pub fn concurrency(mut self, most: usize) -> Runner {
        self.concurrency = most.max(1);
        self
    }

    /// How long what runs may go on when the runner is asked to end. What comes then is handed back
    /// as not begun.
    #[must_use]
    pub fn shutdown_grace(mut self, grace: Duration) -> Runner {
        self.shutdown_grace = grace;
        self
    }

    /// Runs as a program does: where the caller says, until it is asked to end. Where a function
    /// goes on that was told to end and had its time, the process ends here.
    pub async fn main(self) -> ExitCode {
        match self.run().await {
            Ok(End::Orderly) => ExitCode::SUCCESS,
            Ok(End::LeftBehind) => {
                say(format_args!("a function goes on and is left behind"));
                // The runtime's own end would wait for its thread, which may never be over.
                std::process::exit(0)
            }
            Err(error) => {
                say(format_args!("{error}"));
                ExitCode::from(2)
            }
        }
    }

    async fn run(self) -> Result<End, RunnerError> {
        let socket = Socket::given()?;
        self.listen(socket).await
    }

    /// Listens there until it is asked to end, or its parent is gone. A function on a thread that
    /// heeds nothing may still go on then: a program that ends for good calls
    /// [`std::process::exit`].
    pub async fn serve(self, socket: Socket) -> Result<(), RunnerError> {
        self.listen(socket).await.map(|_| ())
    }

    async fn listen(self, socket: Socket) -> Result<End, RunnerError> {
        let mut life = Life::begin().map_err(RunnerError::Signals)?;
        let address = socket.address();
        let listener = TcpListener::bind(address)
            .await
            .map_err(|error| RunnerError::Listen(address, error))?;
        let names: Vec<&str> = self.handlers.names().collect();
        say(format_args!("{} on {address}", names.join(", ")));
        let shared = Arc::new(Shared::new(self.handlers, self.concurrency));
        let why = tokio::select! {
            () = accept(&listener, &shared) => Why::Asked,
            why = life.over() => why,
        };
        drop(listener);
        shared.stopping.cancel();
        shared.calls.close();
        if why == Why::Asked {
            // Whoever asks twice does not want to wait.
            tokio::select! {
                () = shared.calls.wait() => {}
                () = tokio::time::sleep(self.shutdown_grace) => {}
                _ = life.over() => {}
            }
        }
        shared.ended.cancel();
        let _ = tokio::time::timeout(LAST_MOMENT, shared.calls.wait()).await;
        shared.closing.cancel();
        shared.connections.close();
        let _ = tokio::time::timeout(LAST_WORDS, shared.connections.wait()).await;
        shared.say_counts();
        Ok(if shared.permits.available_permits() == self.concurrency {
            End::Orderly
        } else {
            End::LeftBehind
        })
    }
}

/// How a runner ended.
enum End {
    Orderly,
    /// A function goes on, on a thread that heeds nothing.
    LeftBehind,
}

async fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let serving = connection::serve(shared.clone(), stream);
                shared.connections.spawn(serving);
            }
            Err(error) => {
                say(format_args!("no connection could be taken: {error}"));
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
