//! Bytes of a log on their way out: as they are, or cut into lines and cleaned.

use std::io::IsTerminal;

use crate::sanitize::{self, Colours};
use crate::terminal::Terminal;

/// Bytes of a line that is shown in one piece: a log without line breaks must not fill the memory.
const MAX_LINE_BYTES: usize = 256 * 1024;

pub struct Printer<'a> {
    terminal: &'a Terminal,
    raw: bool,
    attempt: u32,
    /// A line whose end has not come yet.
    open: Vec<u8>,
}

impl<'a> Printer<'a> {
    /// Only a terminal acts on what it is sent: a pipe gets the bytes as they are.
    pub fn new(raw: bool, terminal: &'a Terminal) -> Printer<'a> {
        Printer {
            terminal,
            raw: !terminal.json && (raw || !std::io::stdout().is_terminal()),
            attempt: 0,
            open: Vec::new(),
        }
    }

    /// What follows is of this attempt.
    pub fn begin(&mut self, attempt: u32) {
        self.finish();
        self.attempt = attempt;
    }

    pub fn push(&mut self, bytes: &[u8]) {
        if self.raw {
            return self.terminal.bytes(bytes);
        }
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.open.extend_from_slice(part);
            if self.open.ends_with(b"\n") {
                self.open.pop();
                self.line();
            } else if self.open.len() >= MAX_LINE_BYTES {
                self.line();
            }
        }
    }

    /// Nothing more comes of this log: a line that was begun is one.
    fn finish(&mut self) {
        if !self.open.is_empty() {
            self.line();
        }
    }

    /// Says whether that was all.
    pub fn end(&mut self, attempt: u32, whole: &str) {
        self.finish();
        if self.terminal.json {
            let value = serde_json::json!({ "attempt": attempt, "end": whole });
            return self.terminal.value_line(&value);
        }
        self.terminal
            .say(&format!("attempt {attempt}: log {whole}"));
    }

    fn line(&mut self) {
        let line = std::mem::take(&mut self.open);
        if self.terminal.json {
            let text = String::from_utf8_lossy(&line);
            let value = serde_json::json!({ "attempt": self.attempt, "line": text });
            return self.terminal.value_line(&value);
        }
        let colours = if self.terminal.colour_out() {
            Colours::Kept
        } else {
            Colours::Dropped
        };
        self.terminal.data(&sanitize::log_line(&line, colours));
    }
}
