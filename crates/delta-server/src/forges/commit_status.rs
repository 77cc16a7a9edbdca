//! How a commit stands under one name, when several refs have it: two branches, two requests.
//!
//! A forge keeps one status for a commit and a name, which people require of what is merged.
//! So of each ref the newest run has the word, and of these words the worst is the status: one that
//! failed or was ended, else one that goes on, else one that went well, else one that came to
//! nothing. It is never good while the newest run of some ref failed or goes on, also where that
//! ref has another commit by now. Only a run that was ended because its ref moved on says nothing
//! where another does; one that its concurrency group ended for another ref was not tested, and
//! counts.

use std::collections::HashSet;

use delta_core::{Cause, Run, RunId, RunState};
use delta_store::StoreError;
use delta_store::read::{Reader, RunFilter, RunKind};
use delta_wire::api::Trigger;

use super::{summary, supersede_runs};

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
            let Some(other) = named(it, context, &trigger.repository) else {
                continue;
            };
            if !seen.insert(it.header.git_ref.clone()) {
                continue;
            }
            overtaken |= it.header.git_ref == run.header.git_ref && it.id > run.id;
            let mut word = word_of(it);
            if is_superseded(it) && has_moved_on(reader, it, context, &trigger.repository)? {
                word = Word::MovedOn;
            }
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

/// What triggered a run, where its status has this name at this repository.
fn named(run: &Run, context: &str, repository: &str) -> Option<Trigger> {
    let trigger = run.header.trigger.as_deref().and_then(Trigger::from_text);
    let trigger = trigger.filter(|_| run.header.needs_report)?;
    let same = summary::context(&trigger, run.header.trusted) == context
        && trigger.repository == repository;
    same.then_some(trigger)
}

fn word_of(run: &Run) -> Word {
    match run.outcome {
        None => Word::Pending,
        Some(RunState::Success) if run.cause == Some(Cause::NothingToRun) => Word::Nothing,
        Some(RunState::Success) => Word::Good,
        Some(_) => Word::Bad,
    }
}

fn is_superseded(run: &Run) -> bool {
    run.outcome == Some(RunState::Canceled) && run.cause == Some(Cause::Superseded)
}

/// Whether the ref of a superseded run has another commit by now. Whoever ended it for its ref had
/// looked at the head (A43). Else its group did, and that counts where a newer run of the same ref
/// is in the group and ends others: one that was delivered late would have ended itself, and not be
/// in the line. A rerun moves no ref.
fn has_moved_on(
    reader: &dyn Reader,
    run: &Run,
    context: &str,
    repository: &str,
) -> Result<bool, StoreError> {
    if supersede_runs::is_ended_by_its_ref(run) {
        return Ok(true);
    }
    let Some(group) = &run.header.concurrency else {
        return Ok(false);
    };
    let filter = RunFilter {
        repository: run.header.repository.clone(),
        git_ref: run.header.git_ref.clone(),
        kind: RunKind::Plain,
        ..RunFilter::default()
    };
    let ends_it = |it: &Run| {
        let groups = it.header.concurrency.as_ref();
        it.place.is_some() && groups.is_some_and(|it| it.cancel_older && it.key == group.key)
    };
    // Any newer one will do: the newest are enough.
    let newest = reader.runs(&filter, PAGE)?;
    Ok(newest.iter().any(|it| {
        it.id > run.id
            && it.header.commit != run.header.commit
            && it.header.rerun_of.is_none()
            && ends_it(it)
            && named(it, context, repository).is_some()
    }))
}
