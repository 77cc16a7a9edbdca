//! Reports that grow: what is there is handed over before more is waited for.

use std::cell::Cell;
use std::io::{BufRead, Read};

use delta_results::{Format, Limits, read};

/// One line at a time. Whoever asks for the next has handed over those before it.
struct Growing<'s> {
    lines: Vec<&'s str>,
    given: usize,
    rest: &'s [u8],
    /// Cases that were handed over, and the fewest there may be when a line is asked for.
    seen: &'s Cell<usize>,
    behind: usize,
}

impl BufRead for Growing<'_> {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        if self.rest.is_empty() && self.given < self.lines.len() {
            let due = self.given.saturating_sub(self.behind);
            assert!(self.seen.get() >= due, "line {} waits", self.given);
            self.rest = self.lines[self.given].as_bytes();
            self.given += 1;
        }
        Ok(self.rest)
    }

    fn consume(&mut self, amount: usize) {
        self.rest = &self.rest[amount..];
    }
}

impl Read for Growing<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let room = self.fill_buf()?.len().min(into.len());
        into[..room].copy_from_slice(&self.rest[..room]);
        self.consume(room);
        Ok(room)
    }
}

fn handed_over(format: Format, lines: &[&str], behind: usize) {
    let seen = Cell::new(0);
    let growing = Growing {
        lines: lines.to_vec(),
        given: 0,
        rest: &[],
        seen: &seen,
        behind,
    };
    let limits = Limits::default();
    let report = read(format, growing, "", &limits, &mut |_| {
        seen.set(seen.get() + 1)
    });
    assert!(report.problem.is_none(), "{report:?}");
    assert_eq!(seen.get(), 3);
}

#[test]
fn a_case_is_handed_over_before_the_next_is_waited_for() {
    let own = "{\"name\":\"n\",\"status\":\"pass\"}\n";
    handed_over(Format::Json, &[own; 3], 0);
    let libtest = "{\"type\":\"test\",\"event\":\"ok\",\"name\":\"n\"}\n";
    handed_over(Format::Json, &[libtest; 3], 0);
    let go = "{\"Action\":\"pass\",\"Package\":\"p\",\"Test\":\"T\"}\n";
    handed_over(Format::Json, &[go; 3], 0);
    // A point may have a block behind it.
    handed_over(Format::Tap, &["ok 1\n", "ok 2\n", "ok 3\n"], 1);
}
