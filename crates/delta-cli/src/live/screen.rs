//! The screen of `delta-ci run`. On a terminal a board of all jobs that is drawn again and again,
//! never higher than the terminal; anywhere else plain lines, each with its job in front.
//!
//! What jobs print goes to stdout, everything else to stderr.

use std::collections::HashMap;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use delta_agent::log::progress::{Observer, Progress};
use delta_agent::work::{Ended, Identity};
use delta_shim::verdict::Outcome;
use delta_wire::api::JobSummary;
use indicatif::{ProgressBar, ProgressStyle};
use unicode_width::UnicodeWidthStr;

use super::board::{Board, Size, cut_inside};
use super::short_names::short_names;
use crate::failed_job::ended;
use crate::sanitize::{self, Colours};
use crate::terminal::{self, Terminal, Tone};
use crate::{human_time, state_words};

/// Columns of a job's name in front of its lines, on a terminal at most a third of it: the lines
/// need room, too. Longer names lose their middle.
const MAX_NAME_COLUMN: usize = 48;

/// How often the board is drawn: often enough to look alive, seldom enough to cost nothing.
const TICK: Duration = Duration::from_millis(150);

/// Whether what jobs print is shown as it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    Printed,
    /// Only on the board, as last lines.
    Folded,
}

/// What is seen of a run while it happens.
pub struct Screen {
    terminal: Terminal,
    column: usize,
    /// What stands for each job's name in that column.
    names: HashMap<String, String>,
    output: Output,
    board: Arc<Mutex<Board>>,
    /// Only where somebody sees it move.
    drawn: Mutex<Option<Drawn>>,
    live: bool,
}

impl Screen {
    /// `names` are those of all jobs; `logs` when everything is to be printed on a terminal, too.
    pub fn new<'a>(
        terminal: &Terminal,
        names: impl ExactSizeIterator<Item = &'a str> + Clone,
        logs: bool,
    ) -> Screen {
        let live = terminal.live();
        let total = names.len();
        // A board of one job says less than what the job prints.
        let output = if live && terminal.out_is_terminal() && total > 1 && !logs {
            Output::Folded
        } else {
            Output::Printed
        };
        let widest = names.clone().map(|name| sanitize::text(name).width()).max();
        let room = if terminal.out_is_terminal() {
            usize::from(terminal::size().1) / 3
        } else {
            MAX_NAME_COLUMN
        };
        let column = widest.unwrap_or(0).min(room);
        let shown: Vec<String> = names.clone().map(sanitize::text).collect();
        let shown: Vec<&str> = shown.iter().map(String::as_str).collect();
        let short = short_names(&shown, column).into_iter();
        let short = short.map(|(name, short)| (name.to_owned(), short));
        let board = Board::new(total, Instant::now()).in_order(names);
        let board = Arc::new(Mutex::new(board));
        let drawn = live.then(|| Drawn::start(terminal, Arc::clone(&board)));
        Screen {
            terminal: terminal.clone(),
            column,
            names: short.collect(),
            output,
            board,
            drawn: Mutex::new(drawn),
            live,
        }
    }

    /// A job has come to its end.
    pub fn resolved(&self, job: &JobSummary) {
        self.board().resolved(job);
        if self.live {
            return;
        }
        let tone = state_words::job_tone(job.state, job.required);
        let line = self.terminal.paint_err(tone, &ended(job));
        self.say(&sanitize::text(&job.name), &line);
    }

    /// What jobs printed has not been shown.
    pub fn folded(&self) -> bool {
        self.output == Output::Folded
    }

    /// Takes the board away. What follows is a summary.
    pub fn finish(&self) {
        let drawn = self
            .drawn
            .lock()
            .unwrap_or_else(|it| it.into_inner())
            .take();
        drop(drawn);
    }

    fn say(&self, name: &str, line: &str) {
        if self.live {
            return;
        }
        let name = self.terminal.paint_err(Tone::Strong, &self.pad(name));
        self.terminal.say(&format!("{name}   {line}"));
    }

    fn output(&self, name: &str, line: &[u8]) {
        self.board().output(name, line);
        if self.terminal.json || self.folded() {
            return;
        }
        let colours = if self.terminal.colour_out() {
            Colours::Kept
        } else {
            Colours::Dropped
        };
        let name = self.terminal.paint_out(Tone::Quiet, &self.pad(name));
        let mark = self.terminal.paint_out(Tone::Quiet, "|");
        let text = format!("{name} {mark} {}", sanitize::log_line(line, colours));
        terminal::bars().suspend(|| self.terminal.data(text.trim_end()));
    }

    fn pad(&self, name: &str) -> String {
        let name = match self.names.get(name) {
            Some(short) => short.clone(),
            None => cut_inside(name, self.column),
        };
        let blanks = " ".repeat(self.column.saturating_sub(name.width()));
        format!("{name}{blanks}")
    }

    fn ended(&self, job: &Identity, ended: &Ended) {
        let name = sanitize::text(&job.job_name);
        let took = self.board().stopped(&name, Instant::now());
        let took = took.map(human_time::short).unwrap_or_default();
        if ended.outcome != Outcome::Succeeded {
            let summary = sanitize::text(&ended.summary);
            let line = format!("attempt {} ended after {took}: {summary}", job.attempt);
            self.say(&name, &self.terminal.paint_err(Tone::Warn, &line));
        }
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        locked(&self.board)
    }
}

impl Observer for Screen {
    fn progress(&self, progress: Progress<'_>) {
        match progress {
            Progress::Started { job } => {
                let name = sanitize::text(&job.job_name);
                self.board().started(&name, job.attempt, Instant::now());
                self.say(&name, &format!("attempt {} started", job.attempt));
            }
            Progress::Step { job, text, .. } => {
                let first = sanitize::text(text);
                let name = sanitize::text(&job.job_name);
                self.board().step(&name, &first);
                let step = self.terminal.paint_err(Tone::Quiet, &format!("$ {first}"));
                self.say(&name, &step);
            }
            Progress::Output { job, line } => self.output(&sanitize::text(&job.job_name), line),
            Progress::Ended { job, ended } => self.ended(job, ended),
        }
    }
}

fn locked(board: &Mutex<Board>) -> MutexGuard<'_, Board> {
    board
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The board on the terminal, drawn by a thread of its own until this is dropped.
struct Drawn {
    bar: ProgressBar,
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drawn {
    fn start(terminal: &Terminal, board: Arc<Mutex<Board>>) -> Drawn {
        let bar = terminal::bars().add(ProgressBar::new_spinner());
        if let Ok(style) = ProgressStyle::with_template("{msg}") {
            bar.set_style(style);
        }
        terminal::hush();
        let (stop, stopped) = sync_channel(1);
        let (terminal, drawn) = (terminal.clone(), bar.clone());
        let thread = std::thread::spawn(move || {
            while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                drawn.set_message(picture(&terminal, &board));
            }
        });
        Drawn {
            bar,
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Drawn {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It panicked: there is a board less, and a run like any other.
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
        terminal::unhush();
    }
}

/// The board as it is now, in colour, for the terminal as large as it is now.
fn picture(terminal: &Terminal, board: &Mutex<Board>) -> String {
    let size = Size::of_screen(terminal::size());
    let lines = locked(board).render(size, Instant::now());
    let lines = lines.iter().map(|line| match line.tone {
        Some(tone) => terminal.paint_err(tone, &line.text),
        None => line.text.clone(),
    });
    lines.collect::<Vec<_>>().join("\n")
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
            let (id, name) = (sanitize::text(&job.job_id), sanitize::text(&job.job_name));
            format!("{id} {name}, attempt {}", job.attempt)
        };
        match progress {
            Progress::Started { job } => self.terminal.say(&format!("{}: started", shown(job))),
            Progress::Ended { job, ended } => {
                let summary = sanitize::text(&ended.summary);
                self.terminal.say(&format!("{}: {summary}", shown(job)));
            }
            Progress::Step { .. } | Progress::Output { .. } => {}
        }
    }
}
