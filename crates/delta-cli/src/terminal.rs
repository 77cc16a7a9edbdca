//! The two streams: data to stdout, talk to stderr; and whether colour is wanted on each.
//!
//! Meaning never rests on colour alone. A reader that goes away (`| head`) ends the program.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, OnceLock, PoisonError};

use clap::ValueEnum;
use indicatif::MultiProgress;
use owo_colors::{OwoColorize, Style};
use rustix::termios::{LocalModes, OptionalActions, Termios};
use serde::Serialize;

use crate::wrap;

/// Columns of the names of facts; the longest is `run again as`.
const FACT_NAMES: usize = 12;

/// When to use colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum When {
    Auto,
    Always,
    Never,
}

/// What a piece of text means; the colour follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Good,
    Bad,
    Warn,
    Busy,
    Quiet,
    Strong,
}

/// Where a command writes.
#[derive(Clone, Debug)]
pub struct Terminal {
    /// Data is JSON, and talk is left out.
    pub json: bool,
    colour_out: bool,
    colour_err: bool,
}

impl Terminal {
    pub fn new(json: bool, when: When) -> Terminal {
        let wanted = |stream_is_terminal: bool| match when {
            When::Always => true,
            When::Never => false,
            When::Auto => stream_is_terminal && std::env::var_os("NO_COLOR").is_none(),
        };
        Terminal {
            json,
            colour_out: wanted(io::stdout().is_terminal()),
            colour_err: wanted(io::stderr().is_terminal()),
        }
    }

    /// One line of data.
    pub fn data(&self, line: &str) {
        end_on_broken_pipe(writeln!(io::stdout().lock(), "{line}"));
    }

    /// A sentence of data: on a terminal it breaks between words.
    pub fn sentence(&self, text: &str) {
        self.broken(text).iter().for_each(|line| self.data(line));
    }

    /// The lines of such a sentence.
    pub fn broken(&self, text: &str) -> Vec<String> {
        match self.out_width() {
            Some(columns) => wrap::sentence(text, columns),
            None => vec![text.to_owned()],
        }
    }

    /// What something is called, and what it is: `      commit  0123456789`. A word that does not
    /// fit there has the next line.
    pub fn fact(&self, name: &str, text: &str) {
        let label = self.paint_out(Tone::Quiet, &format!("{name:>FACT_NAMES$}"));
        let hang = FACT_NAMES + 2;
        let line = format!("{label}  {}", text.trim_end());
        match self.out_width() {
            Some(columns) if hang + wrap::widest_word(text) > columns => {
                self.data(&self.paint_out(Tone::Quiet, &format!("  {name}")));
                let text = format!("    {}", text.trim_end());
                let lines = wrap::within(&text, columns, 4);
                lines.iter().for_each(|line| self.data(line));
            }
            Some(columns) => wrap::within(&line, columns, hang)
                .iter()
                .for_each(|line| self.data(line)),
            None => self.data(&line),
        }
    }

    /// Bytes of data, as they are.
    pub fn bytes(&self, bytes: &[u8]) {
        let mut stdout = io::stdout().lock();
        end_on_broken_pipe(stdout.write_all(bytes).and_then(|()| stdout.flush()));
    }

    /// A value as JSON, on lines of its own.
    pub fn value(&self, value: &impl Serialize) {
        let text = serde_json::to_string_pretty(value).unwrap_or_else(|_| "null".into());
        self.data(&text);
    }

    /// A value as JSON on one line, for a stream of them.
    pub fn value_line(&self, value: &impl Serialize) {
        let text = serde_json::to_string(value).unwrap_or_else(|_| "null".into());
        self.data(&text);
    }

    /// A sentence of talk. Left out with `--json`, where stderr is for errors only.
    pub fn say(&self, line: &str) {
        if !self.json {
            self.tell(line);
        }
    }

    /// Sentences to stderr, whatever the mode. On a terminal they break between words.
    pub fn tell(&self, text: &str) {
        let line = match width(io::stderr()).filter(|_| !self.json) {
            Some(columns) => {
                let lines = text.lines().flat_map(|it| wrap::sentence(it, columns));
                lines.collect::<Vec<_>>().join("\n")
            }
            None => text.to_owned(),
        };
        // A status line that is being drawn must make room; without one this is a plain write.
        let line = format!("{line}\n");
        // In one piece: stderr has no buffer, and others may write to it, too.
        bars().suspend(|| {
            let _ = io::stderr().lock().write_all(line.as_bytes());
        });
    }

    pub fn paint_out(&self, tone: Tone, text: &str) -> String {
        paint(self.colour_out, tone, text)
    }

    pub fn paint_err(&self, tone: Tone, text: &str) -> String {
        paint(self.colour_err, tone, text)
    }

    pub fn colour_out(&self) -> bool {
        self.colour_out
    }

    pub fn colour_err(&self) -> bool {
        self.colour_err
    }

    /// Somebody sees stderr move: a status line makes sense. A dumb terminal cannot go back.
    pub fn live(&self) -> bool {
        let dumb = std::env::var_os("TERM").is_some_and(|it| it == "dumb");
        !self.json && !dumb && io::stderr().is_terminal()
    }

    /// Columns of the terminal that somebody reads stdout on; none where a program does.
    pub fn out_width(&self) -> Option<usize> {
        width(io::stdout())
    }

    /// Somebody reads stdout, and not a program.
    pub fn out_is_terminal(&self) -> bool {
        io::stdout().is_terminal()
    }
}

/// Rows and columns of the terminal behind stderr; the usual ones where nobody knows.
pub fn size() -> (u16, u16) {
    let size = rustix::termios::tcgetwinsize(io::stderr());
    let size = size.map_or((0, 0), |it| (it.ws_row, it.ws_col));
    match size {
        (0, _) | (_, 0) => (24, 80),
        size => size,
    }
}

/// Columns of the terminal behind a stream; the usual ones where nobody knows, none without one.
fn width(stream: impl IsTerminal + AsFd) -> Option<usize> {
    if !stream.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(stream);
    let columns = size.map_or(0, |it| it.ws_col);
    Some(if columns == 0 { 80 } else { columns.into() })
}

/// The one place where status lines are drawn, so that talk can be put above them.
pub fn bars() -> &'static MultiProgress {
    static BARS: OnceLock<MultiProgress> = OnceLock::new();
    BARS.get_or_init(MultiProgress::new)
}

/// How the terminal was before its keys were hushed.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// From now on what is typed is not shown: the `^C` of a person who cancels would move the lines of
/// a board, which then could not be taken away. Signals work as ever.
pub fn hush() {
    let stderr = io::stderr();
    // The terminal stops a program in the background that changes it.
    let group = rustix::termios::tcgetpgrp(&stderr);
    if group != Ok(rustix::process::getpgrp()) {
        return;
    }
    let Ok(before) = rustix::termios::tcgetattr(&stderr) else {
        return;
    };
    let mut hushed = before.clone();
    hushed
        .local_modes
        .remove(LocalModes::ECHO | LocalModes::ECHONL);
    let changed = rustix::termios::tcsetattr(&stderr, OptionalActions::Now, &hushed);
    if changed.is_ok() {
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
    }
}

/// The terminal as it was.
pub fn unhush() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        // Nobody is there to be told that it is gone.
        let _ = rustix::termios::tcsetattr(io::stderr(), OptionalActions::Now, &before);
    }
}

fn paint(on: bool, tone: Tone, text: &str) -> String {
    if !on {
        return text.to_owned();
    }
    let style = match tone {
        Tone::Good => Style::new().green(),
        Tone::Bad => Style::new().red(),
        Tone::Warn => Style::new().yellow(),
        Tone::Busy => Style::new().cyan(),
        Tone::Quiet => Style::new().dimmed(),
        Tone::Strong => Style::new().bold(),
    };
    text.style(style).to_string()
}

fn end_on_broken_pipe(written: io::Result<()>) {
    match written {
        Ok(()) => {}
        // The reader has what it wanted.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {
            unhush();
            std::process::exit(0)
        }
        Err(error) => {
            unhush();
            eprintln!("error: cannot write to stdout: {error}");
            std::process::exit(i32::from(crate::exit::Exit::Internal.code()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_colour_text_is_untouched() {
        assert_eq!(paint(false, Tone::Bad, "FAILED"), "FAILED");
        assert_eq!(
            paint(true, Tone::Bad, "FAILED"),
            "\u{1b}[31mFAILED\u{1b}[0m"
        );
    }
}
