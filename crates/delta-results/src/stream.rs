//! Where cases leave a parser: counted, cleared of secrets, cut to size, and handed over.

use std::collections::BTreeMap;

use crate::limits::clip;
use crate::{Case, Counts, Limits, Problem, Redact, Status, Totals};

pub struct Cases<'s> {
    pub limits: &'s Limits,
    root: &'s str,
    redact: &'s Redact<'s>,
    sink: &'s mut dyn FnMut(Case),
    totals: Totals,
}

/// Without the colours that some tools write into their reports.
fn plain(text: &mut String) {
    if !text.contains('\u{1b}') {
        return;
    }
    let (mut kept, mut rest) = (String::with_capacity(text.len()), text.as_str());
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        kept.push_str(before);
        // `ESC [ numbers letter`; any other escape loses its first character only.
        let end = after.strip_prefix('[').and_then(|numbers| {
            let end = numbers.find(|c: char| !(c.is_ascii_digit() || c == ';'))?;
            numbers[end..]
                .starts_with(|c: char| c.is_ascii_alphabetic())
                .then_some(end + 2)
        });
        rest = &after[end.unwrap_or(0)..];
    }
    kept.push_str(rest);
    *text = kept;
}

impl<'s> Cases<'s> {
    pub fn new(
        limits: &'s Limits,
        root: &'s str,
        redact: &'s Redact<'s>,
        sink: &'s mut dyn FnMut(Case),
    ) -> Cases<'s> {
        Cases {
            limits,
            root: root.trim_end_matches('/'),
            redact,
            sink,
            totals: Totals::default(),
        }
    }

    pub fn put(&mut self, mut case: Case) -> Result<(), Problem> {
        if self.totals.seen.total() >= self.limits.cases {
            return Err(Problem::TooMany(self.limits.cases));
        }
        self.totals.seen.add(case.status);
        let unhappy = matches!(case.status, Status::Fail | Status::Error);
        self.totals.failures += u64::from(unhappy);
        self.fit(&mut case);
        (self.sink)(case);
        Ok(())
    }

    /// A case that is handed over has more failures than one.
    pub fn more_failures(&mut self, more: u64) {
        self.totals.failures += more;
    }

    pub fn seen(&self) -> Counts {
        self.totals.seen
    }

    /// Adds to what the report says of itself.
    pub fn claim(&mut self, counts: Counts) {
        let claimed = self.totals.claimed.get_or_insert_default();
        claimed.plus(counts);
    }

    /// A path below the folder the tests ran in.
    pub fn place(&self, path: &str) -> String {
        let inside = path
            .strip_prefix(self.root)
            .filter(|_| !self.root.is_empty())
            .and_then(|rest| rest.strip_prefix('/'));
        inside.unwrap_or(path).to_string()
    }

    pub fn into_totals(self) -> Totals {
        self.totals
    }

    fn fit(&self, case: &mut Case) {
        let limits = self.limits;
        self.fit_text(&mut case.suite, limits.name);
        self.fit_text(&mut case.name, limits.name);
        for (text, limit) in [
            (&mut case.message, limits.message),
            (&mut case.trace, limits.trace),
        ] {
            if let Some(text) = text {
                self.fit_text(text, limit);
            }
        }
        let kept = std::mem::take(&mut case.metadata)
            .into_iter()
            .take(limits.metadata)
            .map(|(mut name, mut value)| {
                self.fit_text(&mut name, limits.name);
                self.fit_text(&mut value, limits.name);
                (name, value)
            });
        case.metadata = kept.collect::<BTreeMap<_, _>>();
    }

    /// Secrets go before anything is cut: half of one would not be known for what it is. What is
    /// longer than it may be has perhaps lost its end already.
    fn fit_text(&self, text: &mut String, limit: usize) {
        let missing = text.len() > limit;
        plain(text);
        (self.redact)(text, missing);
        clip(text, limit, missing);
    }
}
