//! Where cases leave a parser: counted, cut to size, and handed over.

use std::collections::BTreeMap;

use crate::limits::clip;
use crate::{Case, Counts, Limits, Problem, Totals};

pub struct Cases<'s> {
    pub limits: &'s Limits,
    root: &'s str,
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
    pub fn new(limits: &'s Limits, root: &'s str, sink: &'s mut dyn FnMut(Case)) -> Cases<'s> {
        Cases {
            limits,
            root: root.trim_end_matches('/'),
            sink,
            totals: Totals::default(),
        }
    }

    pub fn put(&mut self, mut case: Case) -> Result<(), Problem> {
        if self.totals.seen.total() >= self.limits.cases {
            return Err(Problem::TooMany(self.limits.cases));
        }
        self.totals.seen.add(case.status);
        self.fit(&mut case);
        (self.sink)(case);
        Ok(())
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
        clip(&mut case.suite, limits.name);
        clip(&mut case.name, limits.name);
        for (text, limit) in [
            (&mut case.message, limits.message),
            (&mut case.trace, limits.trace),
        ] {
            if let Some(text) = text {
                plain(text);
                clip(text, limit);
            }
        }
        let fits = case.metadata.len() <= limits.metadata
            && case
                .metadata
                .iter()
                .all(|(name, value)| name.len() <= limits.name && value.len() <= limits.name);
        if !fits {
            let kept = std::mem::take(&mut case.metadata).into_iter();
            let kept = kept.take(limits.metadata).map(|(mut name, mut value)| {
                clip(&mut name, limits.name);
                clip(&mut value, limits.name);
                (name, value)
            });
            case.metadata = kept.collect::<BTreeMap<_, _>>();
        }
    }
}
