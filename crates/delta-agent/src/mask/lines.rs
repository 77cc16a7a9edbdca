//! Base64 that was broken into lines, whatever stands before the secret in it and before each line:
//! white space after a line's end, or a line's end as JSON writes it, is stepped over.
//!
//! The first characters must stand in one line to be found. Where the line ends among them, the
//! rest is looked for without them: what is seen then is too little to tell anything.

use zeroize::Zeroize;

use super::find::{Hit, More};
use super::forms::{self, MIN_BYTES};
use super::skips::Skips;

/// What may stand between two lines: an end, and so much white space.
const ENDS: [&[u8]; 4] = [b"\n", b"\r\n", b"\\n", b"\\r\\n"];
const MAX_INDENT: usize = 64;

/// A text of base64: what of it the secret alone decides, and how it may go on to its end.
pub(super) struct Line {
    pub text: Vec<u8>,
    pub own: usize,
}

/// Everything that is looked for in lines.
pub(super) struct Lines {
    texts: Vec<Line>,
    /// Which text, and from which character on; sorted by what is there.
    sorted: Vec<(usize, usize)>,
    skips: Skips,
}

/// How much of a text is at a place.
struct Fit {
    length: usize,
    open: bool,
}

enum Gap {
    None,
    Whole(usize),
    /// It goes on to the end.
    Open,
}

impl Lines {
    pub fn of<'a>(values: impl IntoIterator<Item = &'a str>) -> Option<Lines> {
        let texts: Vec<Line> = values.into_iter().flat_map(forms::in_lines).collect();
        let mut sorted = Vec::new();
        for (index, line) in texts.iter().enumerate() {
            let starts = (0..MIN_BYTES).filter(|start| start + MIN_BYTES <= line.own);
            sorted.extend(starts.map(|start| (index, start)));
        }
        if sorted.is_empty() {
            return None;
        }
        sorted.sort_by_key(|it| beginning(&texts, *it));
        let beginnings = sorted.iter().map(|it| beginning(&texts, *it));
        let skips = Skips::of(beginnings, MIN_BYTES);
        Some(Lines {
            texts,
            sorted,
            skips,
        })
    }

    /// The first place from `from` on, and before `limit`.
    pub fn next(&self, bytes: &[u8], from: usize, limit: usize, more: More) -> Option<Hit> {
        let at = |place| self.at(bytes, place, more);
        self.skips.next(bytes, from, limit, at)
    }

    fn at(&self, bytes: &[u8], place: usize, more: More) -> Option<Hit> {
        let rest = &bytes[place..];
        let key = &rest[..rest.len().min(MIN_BYTES)];
        let first = self
            .sorted
            .partition_point(|it| beginning(&self.texts, *it) < key);
        let (mut length, mut open) = (0, false);
        for it in &self.sorted[first..] {
            if !beginning(&self.texts, *it).starts_with(key) {
                break;
            }
            let fit = fit(&self.texts[it.0], it.1, rest);
            length = length.max(fit.length);
            open |= fit.open;
        }
        if open && more == More::End {
            open = false;
            if rest.len() >= MIN_BYTES {
                length = rest.len();
            }
        }
        (length > 0 || open).then_some(Hit {
            place,
            length,
            open,
        })
    }
}

fn beginning(texts: &[Line], (text, start): (usize, usize)) -> &[u8] {
    &texts[text].text[start..start + MIN_BYTES]
}

fn fit(line: &Line, start: usize, rest: &[u8]) -> Fit {
    let (mut at, mut seen, mut length) = (start, 0, 0);
    let mut broken = false;
    while at < line.text.len() {
        let Some(byte) = rest.get(seen) else {
            return Fit { length, open: true };
        };
        if *byte == line.text[at] {
            (at, seen, broken) = (at + 1, seen + 1, false);
            if at == line.own || at == line.text.len() {
                length = seen;
            }
            continue;
        }
        match gap(&rest[seen..]) {
            Gap::Whole(bytes) if !broken => (seen, broken) = (seen + bytes, true),
            Gap::Open if !broken => return Fit { length, open: true },
            _ => break,
        }
    }
    Fit {
        length,
        open: false,
    }
}

fn gap(bytes: &[u8]) -> Gap {
    for end in ENDS {
        if let Some(after) = bytes.strip_prefix(end) {
            let indent = after.iter().take_while(|byte| b" \t".contains(byte));
            return match indent.count() {
                spaces if spaces > MAX_INDENT => Gap::None,
                spaces if spaces == after.len() => Gap::Open,
                spaces => Gap::Whole(end.len() + spaces),
            };
        }
    }
    match ENDS.iter().any(|end| end.starts_with(bytes)) {
        true => Gap::Open,
        false => Gap::None,
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        for line in &mut self.texts {
            line.text.zeroize();
        }
    }
}
