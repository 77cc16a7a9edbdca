//! Which slots were seen lately, with what they offer: what "why is this pending" is answered from
//! (D12). Memory only; it decides nothing and no work depends on it (LM-26).

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use delta_core::Text;
use delta_core::requirement::Capabilities;
use delta_core::why::{SeenAgent, SeenOffer};

/// A slot that was not heard of for this long is no longer spoken of: three default heartbeats.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);

/// Slots remembered: more than one server serves.
const MAX_SLOTS: usize = 50_000;

#[derive(Default)]
pub struct Presence {
    slots: Mutex<HashMap<(Text, Text), Seen>>,
}

struct Seen {
    capabilities: Capabilities,
    busy: bool,
    at: Instant,
}

impl Presence {
    /// A slot asks for work.
    pub fn asks(&self, principal: &Text, runner: &Text, capabilities: &Capabilities) {
        let mut slots = self.slots.lock().unwrap_or_else(|e| e.into_inner());
        let key = (principal.clone(), runner.clone());
        if slots.len() >= MAX_SLOTS && !slots.contains_key(&key) {
            slots.retain(|_, seen| seen.at.elapsed() < REMEMBERED_FOR);
            if slots.len() >= MAX_SLOTS {
                return;
            }
        }
        let seen = Seen {
            capabilities: capabilities.clone(),
            busy: false,
            at: Instant::now(),
        };
        slots.insert(key, seen);
    }

    /// A slot has work: it was granted some, or says that it is at it.
    pub fn works(&self, principal: &Text, runner: &Text) {
        let mut slots = self.slots.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(seen) = slots.get_mut(&(principal.clone(), runner.clone())) {
            seen.busy = true;
            seen.at = Instant::now();
        }
    }

    /// A parked slot is still there.
    pub fn still_asks(&self, principal: &Text, runner: &Text) {
        let mut slots = self.slots.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(seen) = slots.get_mut(&(principal.clone(), runner.clone())) {
            seen.at = Instant::now();
        }
    }

    pub fn agents(&self) -> Vec<SeenAgent> {
        let slots = self.slots.lock().unwrap_or_else(|e| e.into_inner());
        slots
            .iter()
            .filter(|(_, seen)| seen.at.elapsed() < REMEMBERED_FOR)
            .map(|((_, runner), seen)| SeenAgent {
                name: runner.clone(),
                offers: vec![SeenOffer {
                    capabilities: seen.capabilities.clone(),
                    busy: seen.busy,
                }],
                down: Vec::new(),
                turns_away: None,
            })
            .collect()
    }
}
