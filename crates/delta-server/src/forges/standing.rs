//! How a commit stands under one name, when several refs have it: two branches, two requests.
//!
//! A forge keeps one status for a commit and a name, which people require of what is merged.
//! So of each ref the newest run has the word, and of these words the worst is the status: one that
//! failed, else one that goes on, else one that went well, else one that came to nothing. It is
//! never good while the newest run of some ref failed or goes on. A run whose ref has moved on to
//! another commit says nothing where another does.

use std::collections::HashSet;

use delta_core::{Cause, Run, RunId, RunState};
use delta_store::StoreError;
use delta_store::read::{Reader, RunFilter, RunKind};
use delta_wire::api::Trigger;

use super::summary;

/// Runs of a commit that are read at a time; all of them are.
const PAGE: usize = 200;

/// What a run says about its commit, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Word {
    MovedOn,
    Nothing,
    Good,
    Pending,
    Bad,
}

/// The newest run of each ref, and whose word counts.
#[derive(Debug)]
pub struct Standing {
    own: RunId,
    /// A newer run of the same ref is there, and tells of itself.
    overtaken: bool,
    run: RunId,
    trigger: Trigger,
    word: Word,
    refs: usize,
}

/// What two looks at a commit are compared by: what its other runs change, not what this one does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    run: RunId,
    /// None where it is this run's own: its next stage is told anyway.
    word: Option<Word>,
    several: bool,
}

impl Standing {
    /// The run that has the word.
    pub fn word(&self) -> (RunId, &Trigger) {
        (self.run, &self.trigger)
    }

    pub fn is_overtaken(&self) -> bool {
        self.overtaken
    }

    pub fn is_of_several(&self) -> bool {
        self.refs > 1
    }

    pub fn seen(&self) -> Seen {
        Seen {
            run: self.run,
            word: (self.run != self.own).then_some(self.word),
            several: self.is_of_several(),
        }
    }
}

impl Seen {
    /// Whether another run than the one that is told about has the word.
    pub fn is_anothers(&self) -> bool {
        self.word.is_some()
    }
}

/// How the commit of a run stands; none where it has no commit.
pub fn of(
    reader: &dyn Reader,
    run: &Run,
    trigger: &Trigger,
) -> Result<Option<Standing>, StoreError> {
    if run.header.commit.is_none() {
        return Ok(None);
    }
    let context = summary::context(trigger, run.header.trusted);
    let mut filter = RunFilter {
        repository: run.header.repository.clone(),
        commit: run.header.commit.clone(),
        kind: RunKind::Plain,
        ..RunFilter::default()
    };
    let (mut seen, mut overtaken) = (HashSet::new(), false);
    let mut worst: Option<(Word, RunId, Trigger)> = None;
    loop {
        // The newest first: ids rise with the moment a run was made.
        let found = reader.runs(&filter, PAGE)?;
        for it in &found {
            let other = it.header.trigger.as_deref().and_then(Trigger::from_text);
            let Some(other) = other.filter(|_| it.header.needs_report) else {
                continue;
            };
            let same = summary::context(&other, it.header.trusted) == context
                && other.repository == trigger.repository;
            if !same || !seen.insert(it.header.git_ref.clone()) {
                continue;
            }
            overtaken |= it.header.git_ref == run.header.git_ref && it.id > run.id;
            let word = word_of(it);
            if worst.as_ref().is_none_or(|(known, ..)| word > *known) {
                worst = Some((word, it.id, other));
            }
        }
        match found.last() {
            Some(last) if found.len() == PAGE => filter.before = Some(last.id),
            _ => break,
        }
    }
    Ok(worst.map(|(word, id, trigger)| Standing {
        own: run.id,
        overtaken,
        run: id,
        trigger,
        word,
        refs: seen.len(),
    }))
}

fn word_of(run: &Run) -> Word {
    match run.outcome {
        None => Word::Pending,
        Some(RunState::Success) if run.cause == Some(Cause::NothingToRun) => Word::Nothing,
        Some(RunState::Success) => Word::Good,
        Some(RunState::Canceled) if run.cause == Some(Cause::Superseded) => Word::MovedOn,
        Some(_) => Word::Bad,
    }
}
