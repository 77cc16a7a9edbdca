//! Places at git servers: how many are reached at a time, and how many of them at one host, so that
//! one that does not answer keeps nobody waiting but who wants something of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub struct Hosts {
    at_one: usize,
    hosts: Mutex<HashMap<String, Arc<Semaphore>>>,
    all: Arc<Semaphore>,
}

/// Until dropped.
pub struct Place {
    _host: Option<OwnedSemaphorePermit>,
    _machine: Option<OwnedSemaphorePermit>,
}

impl Hosts {
    pub fn new(at_one: usize, in_all: usize) -> Hosts {
        Hosts {
            at_one,
            hosts: Mutex::default(),
            all: Arc::new(Semaphore::new(in_all)),
        }
    }

    /// Waits for a place. Who waits for the machine has one at the host already, never the other
    /// way round.
    pub async fn place(&self, host: &str) -> Place {
        let host = {
            let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
            let places = || Arc::new(Semaphore::new(self.at_one));
            hosts.entry(host.to_owned()).or_insert_with(places).clone()
        };
        Place {
            // They are never closed.
            _host: host.acquire_owned().await.ok(),
            _machine: self.all.clone().acquire_owned().await.ok(),
        }
    }
}
