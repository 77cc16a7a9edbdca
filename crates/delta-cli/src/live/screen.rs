//! Lines about attempts as the agent in this process reports them, and a status line on a terminal.
//!
//! What jobs print goes to stdout, everything else to stderr.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use delta_agent::executor::{Ended, Identity, Outcome};
use delta_agent::progress::{Observer, Progress};
use delta_wire::api::JobSummary;
use indicatif::{ProgressBar, ProgressStyle};

use crate::clean::{self, Colours};
use crate::terminal::{self, Terminal, Tone};
use crate::{moment, words};

/// Names longer than this are not padded to one column: the lines would have no room left.
const MAX_NAME_COLUMN: usize = 20;

/// How often the status line moves.
const TICK: Duration = Duration::from_millis(120);

/// The screen of `delta-ci run`.
pub struct Screen {
    terminal: Terminal,
    column: usize,
    bar: Option<ProgressBar>,
    running: Mutex<BTreeMap<String, Instant>>,
}

impl Screen {
    /// `names` are those of all jobs, for the width of the first column.
    pub fn new<'a>(terminal: &Terminal, names: impl Iterator<Item = &'a str>) -> Screen {
        let widest = names.map(|name| name.chars().count()).max().unwrap_or(0);
        Screen {
            terminal: terminal.clone(),
            column: widest.min(MAX_NAME_COLUMN),
            bar: status_line(terminal),
            running: Mutex::new(BTreeMap::new()),
        }
    }

    /// How many jobs are over, for the status line.
    pub fn standing(&self, jobs: &[JobSummary]) {
        let Some(bar) = &self.bar else { return };
        let over = jobs.iter().filter(|job| words::is_over(job.state)).count();
        let running: Vec<String> = self.lock().keys().cloned().collect();
        let mut message = format!("{over} of {} jobs done", jobs.len());
        if !running.is_empty() {
            message.push_str(&format!(", running: {}", running.join(", ")));
        }
        bar.set_message(message);
    }

    /// A job has come to its end.
    pub fn resolved(&self, job: &JobSummary) {
        let tone = words::job_tone(job.state, job.required);
        let state = self.terminal.paint_err(tone, job.state.as_str());
        let mut line = state;
        if let (Some(from), Some(to)) = (job.started_at, job.ended_at) {
            line.push_str(&format!(" in {}", moment::short(moment::between(from, to))));
        }
        let note = words::note(job);
        if !note.is_empty() {
            line.push_str(&format!(" ({note})"));
        }
        self.say(&clean::text(&job.name), &line);
    }

    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn say(&self, name: &str, line: &str) {
        let name = self.terminal.paint_err(Tone::Strong, &self.pad(name));
        self.terminal.say(&format!("{name}   {line}"));
    }

    fn output(&self, name: &str, line: &[u8]) {
        if self.terminal.json {
            return;
        }
        let colours = match self.terminal.colour_out() {
            true => Colours::Kept,
            false => Colours::Dropped,
        };
        let name = self.terminal.paint_out(Tone::Quiet, &self.pad(name));
        let mark = self.terminal.paint_out(Tone::Quiet, "|");
        let text = format!("{name} {mark} {}", clean::log_line(line, colours));
        terminal::bars().suspend(|| self.terminal.data(text.trim_end()));
    }

    fn pad(&self, name: &str) -> String {
        format!("{name:<width$}", width = self.column)
    }

    fn ended(&self, job: &Identity, ended: &Ended) {
        let name = clean::text(&job.job_name);
        let started = self.lock().remove(&name);
        let took = started
            .map(|at| moment::short(at.elapsed()))
            .unwrap_or_default();
        if ended.outcome != Outcome::Succeeded {
            let summary = clean::text(&ended.summary);
            let line = format!("attempt {} ended after {took}: {summary}", job.attempt);
            self.say(&name, &self.terminal.paint_err(Tone::Warn, &line));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Instant>> {
        self.running
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Observer for Screen {
    fn progress(&self, progress: Progress<'_>) {
        match progress {
            Progress::Started { job } => {
                let name = clean::text(&job.job_name);
                self.lock().insert(name.clone(), Instant::now());
                self.say(&name, &format!("attempt {} started", job.attempt));
            }
            Progress::Step { job, text, .. } => {
                let first = text.lines().next().unwrap_or_default();
                let step = format!("$ {}", clean::text(first));
                let step = self.terminal.paint_err(Tone::Quiet, &step);
                self.say(&clean::text(&job.job_name), &step);
            }
            Progress::Output { job, line } => self.output(&clean::text(&job.job_name), line),
            Progress::Ended { job, ended } => self.ended(job, ended),
        }
    }
}

fn status_line(terminal: &Terminal) -> Option<ProgressBar> {
    if !terminal.live() {
        return None;
    }
    let bar = terminal::bars().add(ProgressBar::new_spinner());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(TICK);
    Some(bar)
}

/// One line when an attempt begins and one when it ends: for agents that run for a long time.
pub struct Brief {
    terminal: Terminal,
}

impl Brief {
    pub fn new(terminal: &Terminal) -> Brief {
        Brief {
            terminal: terminal.clone(),
        }
    }
}

impl Observer for Brief {
    fn progress(&self, progress: Progress<'_>) {
        let shown = |job: &Identity| {
            let (id, name) = (clean::text(&job.job_id), clean::text(&job.job_name));
            format!("{id} {name}, attempt {}", job.attempt)
        };
        match progress {
            Progress::Started { job } => self.terminal.say(&format!("{}: started", shown(job))),
            Progress::Ended { job, ended } => {
                let summary = clean::text(&ended.summary);
                self.terminal.say(&format!("{}: {summary}", shown(job)));
            }
            Progress::Step { .. } | Progress::Output { .. } => {}
        }
    }
}
