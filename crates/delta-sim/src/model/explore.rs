//! Breadth-first search over all states of a model, in layers, on as many threads as there are
//! cores. A state is known by a 128-bit print; the shortest way to a violation is printed.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::{Duration, Instant};

use crate::check::{Tally, Violation};

/// What can be explored.
pub trait Model: Sync {
    type State: Clone + Send + Sync;
    type Action: Copy + Debug + Send + Sync;

    fn initial(&self) -> Vec<Self::State>;
    /// Everything that may happen next.
    fn actions(&self, state: &Self::State, into: &mut Vec<Self::Action>);
    /// The state after the action; `None` when it changes nothing.
    fn step(
        &self,
        state: &Self::State,
        action: Self::Action,
        tally: &mut Tally,
    ) -> Result<Option<Self::State>, Violation>;
    /// Equal for states whose futures are equal.
    fn print(&self, state: &Self::State) -> u128;
    /// Whether a state without a future is a good place to stop.
    fn may_rest(&self, state: &Self::State) -> bool;
}

/// What was explored.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub states: u64,
    pub transitions: u64,
    pub depth: u32,
    pub duration: Duration,
    pub judged: Tally,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} states, {} transitions, depth {}, {:.1} s\n  judged: {}",
            self.states,
            self.transitions,
            self.depth,
            self.duration.as_secs_f64(),
            self.judged
        )
    }
}

impl Report {
    pub fn add(&mut self, other: &Report) {
        self.states += other.states;
        self.transitions += other.transitions;
        self.depth = self.depth.max(other.depth);
        self.duration += other.duration;
        self.judged.add(&other.judged);
    }
}

/// A way from the beginning to a broken invariant.
#[derive(Debug)]
pub struct Counterexample {
    pub violation: Violation,
    pub actions: Vec<String>,
}

impl std::fmt::Display for Counterexample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}", self.violation)?;
        for (n, action) in self.actions.iter().enumerate() {
            writeln!(f, "  {:2}. {action}", n + 1)?;
        }
        Ok(())
    }
}

/// Prints are already well mixed: their own bits serve as the hash.
#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 ^= u64::from_le_bytes(word);
        }
    }
    fn write_u128(&mut self, n: u128) {
        self.0 = n as u64 ^ (n >> 64) as u64;
    }
}

type Seen<A> = HashMap<u128, (u128, Option<A>), BuildHasherDefault<AsIs>>;

/// More than this is a bound chosen wrongly, not a longer test: about 6 GB of memory.
const TOO_MANY_STATES: usize = 40_000_000;

struct Found<M: Model> {
    next: Vec<(u128, u128, M::Action, M::State)>,
    transitions: u64,
    tally: Tally,
    broken: Option<(u128, Option<M::Action>, Violation)>,
}

/// Explores everything that can be reached.
pub fn explore<M: Model>(model: &M) -> Result<Report, Counterexample> {
    let start = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut seen: Seen<M::Action> = Seen::default();
    let mut layer: Vec<(u128, M::State)> = Vec::new();
    for state in model.initial() {
        let print = model.print(&state);
        if seen.insert(print, (print, None)).is_none() {
            layer.push((print, state));
        }
    }
    let mut report = Report::default();
    while !layer.is_empty() {
        let part = layer.len().div_ceil(threads).max(256);
        let found: Vec<Found<M>> = std::thread::scope(|scope| {
            let seen = &seen;
            let workers: Vec<_> = layer
                .chunks(part)
                .map(|chunk| scope.spawn(move || expand(model, chunk, seen)))
                .collect();
            workers
                .into_iter()
                .map(|worker| worker.join().expect("a worker of the explorer panicked"))
                .collect()
        });
        layer.clear();
        for part in found {
            report.transitions += part.transitions;
            report.judged.add(&part.tally);
            if let Some((at, action, violation)) = part.broken {
                return Err(counterexample(&seen, at, action, violation));
            }
            for (print, from, action, state) in part.next {
                if let std::collections::hash_map::Entry::Vacant(entry) = seen.entry(print) {
                    entry.insert((from, Some(action)));
                    layer.push((print, state));
                }
            }
        }
        assert!(seen.len() < TOO_MANY_STATES, "the bound is too large");
        report.depth += u32::from(!layer.is_empty());
        if std::env::var_os("DELTA_MODEL_PROGRESS").is_some() {
            let (depth, known, open) = (report.depth, seen.len(), layer.len());
            println!("depth {depth}: {known} states, {open} of them new");
        }
    }
    report.states = seen.len() as u64;
    report.duration = start.elapsed();
    Ok(report)
}

fn expand<M: Model>(model: &M, layer: &[(u128, M::State)], seen: &Seen<M::Action>) -> Found<M> {
    let mut found = Found {
        next: Vec::new(),
        transitions: 0,
        tally: Tally::default(),
        broken: None,
    };
    let mut actions = Vec::new();
    for (print, state) in layer {
        actions.clear();
        model.actions(state, &mut actions);
        let mut moved = false;
        for &action in &actions {
            found.transitions += 1;
            match model.step(state, action, &mut found.tally) {
                Ok(None) => {}
                Ok(Some(next)) => {
                    moved = true;
                    let next_print = model.print(&next);
                    if !seen.contains_key(&next_print) {
                        found.next.push((next_print, *print, action, next));
                    }
                }
                Err(violation) => {
                    found.broken = Some((*print, Some(action), violation));
                    return found;
                }
            }
        }
        if !moved && !model.may_rest(state) {
            let violation = Violation {
                invariant: "L2",
                what: "nothing can happen any more, yet the run has not ended".into(),
            };
            found.broken = Some((*print, None, violation));
            return found;
        }
    }
    found
}

fn counterexample<A: Copy + Debug>(
    seen: &Seen<A>,
    mut at: u128,
    last: Option<A>,
    violation: Violation,
) -> Counterexample {
    let mut actions: Vec<String> = last.iter().map(|action| format!("{action:?}")).collect();
    while let Some((from, Some(action))) = seen.get(&at) {
        actions.push(format!("{action:?}"));
        at = *from;
    }
    actions.reverse();
    Counterexample { violation, actions }
}
