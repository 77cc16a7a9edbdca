//! What a proxy did to its traffic: every fault counted by kind and written down.
//!
//! On a failing test the proxy prints it with the seed, so that the failure can be understood and
//! repeated. Holds facts about bytes, never the bytes: a lease token may be among them.

use std::collections::BTreeMap;
use std::sync::Mutex;

/// More lines than a person reads; later faults are still counted.
const MOST_LINES: usize = 10_000;

#[derive(Debug)]
pub struct Journal {
    seed: u64,
    pages: Mutex<Pages>,
}

#[derive(Debug, Default)]
struct Pages {
    lines: Vec<String>,
    counts: BTreeMap<&'static str, u64>,
}

impl Journal {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            pages: Mutex::default(),
        }
    }

    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// One line per fault, oldest first.
    pub fn lines(&self) -> Vec<String> {
        self.with(|pages| pages.lines.clone())
    }

    /// How often a fault of this kind was done, by the first word(s) of its lines.
    pub fn count(&self, kind: &str) -> u64 {
        self.with(|pages| pages.counts.get(kind).copied().unwrap_or(0))
    }

    /// All kinds that happened, with their counts.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.with(|pages| pages.counts.clone())
    }

    pub(super) fn note(&self, kind: &'static str, detail: String) {
        self.with(|pages| {
            *pages.counts.entry(kind).or_default() += 1;
            if pages.lines.len() < MOST_LINES {
                pages.lines.push(format!("{kind}: {detail}"));
            }
        });
    }

    /// For the drop of a proxy in a failing test.
    pub(super) fn print_if_panicking(&self, who: &str) {
        if std::thread::panicking() {
            let lines = self.lines();
            eprintln!("--- {who}, seed {}, {} faults:", self.seed, lines.len());
            lines.iter().for_each(|line| eprintln!("{line}"));
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Pages) -> T) -> T {
        act(&mut self
            .pages
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}
