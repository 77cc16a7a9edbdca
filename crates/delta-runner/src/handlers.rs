//! Functions by name, with their types taken away: JSON in, JSON out.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::context::Context;
use crate::failure::Failure;
use crate::span::Span;

/// What a function came to.
pub(crate) type Done = Result<Box<RawValue>, Failure>;
type Running = Pin<Box<dyn Future<Output = Done> + Send>>;
type Handler = dyn Fn(&RawValue, Context, Work) -> Running + Send + Sync;

/// Held by whatever does the work of one call, a thread that nobody can end included: when it is
/// dropped the call's place is free, and then the call is over.
pub(crate) struct Work {
    _permit: OwnedSemaphorePermit,
    _over: DropGuard,
}

impl Work {
    pub fn new(permit: OwnedSemaphorePermit, over: CancellationToken) -> Work {
        Work {
            _permit: permit,
            _over: over.drop_guard(),
        }
    }
}

/// Every function of a runner.
#[derive(Clone, Default)]
pub(crate) struct Handlers(BTreeMap<String, Arc<Handler>>);

impl Handlers {
    pub fn add<P, T, F, R>(&mut self, name: &str, function: F)
    where
        P: DeserializeOwned + Send + 'static,
        T: Serialize,
        F: Fn(P, Context) -> R + Send + Sync + 'static,
        R: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let function = Arc::new(function);
        self.insert(name, move |params: P, context, work| {
            let function = Arc::clone(&function);
            async move {
                let _work = work;
                answer(function(params, context).await)
            }
        });
    }

    pub fn add_blocking<P, T, F>(&mut self, name: &str, function: F)
    where
        P: DeserializeOwned + Send + 'static,
        T: Serialize + Send + 'static,
        F: Fn(P, Context) -> Result<T, Failure> + Send + Sync + 'static,
    {
        let function = Arc::new(function);
        self.insert(name, move |params: P, context, work: Work| {
            let function = Arc::clone(&function);
            async move {
                let span = Span::current();
                // The thread goes on when nobody waits for it any more, and keeps its place.
                let work = move || {
                    let _work = work;
                    span.run(|| function(params, context))
                };
                let done = tokio::task::spawn_blocking(work);
                match done.await {
                    Ok(done) => answer(done),
                    Err(_) => Err(Failure::error("the function panicked")),
                }
            }
        });
    }

    fn insert<P, F, R>(&mut self, name: &str, call: F)
    where
        P: DeserializeOwned + Send + 'static,
        F: Fn(P, Context, Work) -> R + Send + Sync + 'static,
        R: Future<Output = Done> + Send + 'static,
    {
        let handler = move |params: &RawValue, context: Context, work: Work| -> Running {
            match serde_json::from_str::<P>(params.get()) {
                Ok(params) => Box::pin(call(params, context, work)),
                Err(error) => Box::pin(std::future::ready(Err(unfit(&error)))),
            }
        };
        self.0.insert(name.to_owned(), Arc::new(handler));
    }

    pub fn get(&self, name: &str) -> Option<Arc<Handler>> {
        self.0.get(name).cloned()
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

fn answer<T: Serialize>(done: Result<T, Failure>) -> Done {
    let result = to_raw_value(&done?);
    result.map_err(|error| Failure::error(format!("the result is no JSON: {error}")))
}

/// The words of the parser name the field that is wrong.
fn unfit(error: &serde_json::Error) -> Failure {
    Failure::error(format!("params do not fit: {error}")).of_type("bad_params")
}
