//! Base64 that was broken into lines, whatever stands before the secret in it and before each line:
//! white space after a line's end, or a line's end as JSON writes it, is stepped over.
//!
//! Looked for are the ends of lines, and what stands before and behind each: that is quick where
//! there are no secrets. Where a line ends among the first characters of a text, the rest is looked
//! for without them: what is seen then is too little to tell anything.

use std::collections::BTreeSet;

use memchr::memchr2_iter;
use zeroize::Zeroize;

use super::find::{Hit, More};
use super::forms::{self, MIN_BYTES};
use super::grams::{Pairs, Table, WORD, pair, word};

/// What may stand between two lines: an end, and so much white space.
const ENDS: [&[u8]; 4] = [b"\n", b"\r\n", b"\\n", b"\\r\\n"];
const LONGEST_END: usize = 4;
const MAX_INDENT: usize = 64;
/// What may be left of an end whose beginning was in the piece before.
const CUT_ENDS: [&[u8]; 3] = [b"", b"n", b"r\\n"];

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
    /// Which text, and how far it has come; sorted by the last characters up to there.
    tails: Vec<(u32, u32)>,
    /// The last four bytes of any of those: nearly all lines are told apart by them.
    ends: Table<bool>,
    /// The first four of everything that is sorted, and the first two.
    begins: Table<bool>,
    begin_pairs: Pairs,
    longest: usize,
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
        let mut tails = Vec::new();
        for (index, line) in texts.iter().enumerate() {
            tails.extend((MIN_BYTES..=line.own).map(|come| (index as u32, come as u32)));
        }
        tails.sort_by_key(|it| tail(&texts, *it));
        let mut ends = Table::new(tails.len(), false);
        for it in &tails {
            *ends.at_mut(word(tail(&texts, *it), MIN_BYTES - WORD)) = true;
        }
        let mut begins = Table::new(sorted.len(), false);
        let mut begin_pairs = Pairs::default();
        for it in &sorted {
            *begins.at_mut(word(beginning(&texts, *it), 0)) = true;
            begin_pairs.add(pair(beginning(&texts, *it), 0));
        }
        let longest = texts.iter().map(|line| line.own).max().unwrap_or(0);
        Some(Lines {
            texts,
            sorted,
            tails,
            ends,
            begins,
            begin_pairs,
            longest,
        })
    }

    /// The first place from `from` on, and before `limit`.
    pub fn next(&self, bytes: &[u8], from: usize, limit: usize, more: More) -> Option<Hit> {
        // Nobody knows what was before the first byte: a line may have ended there.
        let first = match from {
            0 => CUT_ENDS
                .iter()
                .find_map(|end| self.behind(bytes, end, more)),
            _ => None,
        };
        if first.is_some() {
            return first;
        }
        let last = limit.saturating_add(self.longest).min(bytes.len());
        // A line that begins here may have had its end before.
        let begin = from.saturating_sub(MAX_INDENT + LONGEST_END).min(last);
        let found = memchr2_iter(b'\n', b'\\', &bytes[begin..last])
            .find_map(|at| self.around(bytes, from, begin + at, more));
        // The rest of an end may follow.
        found.or_else(|| {
            if bytes[begin..last].ends_with(b"\r") {
                self.before(bytes, from, last - 1, more)
            } else {
                None
            }
        })
    }

    /// What is before or behind the end of a line, if this is one. Of nearly all of them the bytes
    /// next to it tell that nothing is.
    #[inline]
    fn around(&self, bytes: &[u8], from: usize, at: usize, more: More) -> Option<Hit> {
        if let Some(near) = bytes.get(at.wrapping_sub(WORD)..at + 1 + WORD) {
            let mut behind = word(near, WORD + 1);
            let next = near[WORD + 1];
            let nothing = match near[WORD] {
                b'\n' if next == b' ' || next == b'\t' => {
                    let rest = &bytes[at + 1..];
                    let indent = rest.iter().position(|byte| !b" \t".contains(byte));
                    match indent.and_then(|indent| rest.get(indent..indent + WORD)) {
                        Some(line) => behind = word(line, 0),
                        None => return self.closely(bytes, from, at, more),
                    }
                    !self.begins.at(behind)
                }
                b'\n' => !self.begins.at(behind),
                _ => next != b'n' && next != b'r',
            };
            if nothing && near[WORD - 1] != b'\r' && !self.ends.at(word(near, 0)) {
                return None;
            }
        }
        self.closely(bytes, from, at, more)
    }

    #[cold]
    fn closely(&self, bytes: &[u8], from: usize, at: usize, more: More) -> Option<Hit> {
        let end = at - usize::from(at > 0 && bytes[at - 1] == b'\r');
        let hit = self.before(bytes, from, end, more);
        if hit.is_some() {
            return hit;
        }
        match gap(&bytes[at..]) {
            Gap::Whole(gap) if at + gap >= from => self.begins_at(bytes, at + gap, more),
            _ => None,
        }
    }

    /// What is behind the rest of a line's end, and the white space that follows it.
    fn behind(&self, bytes: &[u8], end: &[u8], more: More) -> Option<Hit> {
        let after = bytes.strip_prefix(end)?;
        let indent = after
            .iter()
            .take_while(|byte| b" \t".contains(byte))
            .count();
        self.begins_at(bytes, end.len() + indent.min(MAX_INDENT), more)
    }

    /// What begins at the beginning of a line: also a text that had its first characters before.
    fn begins_at(&self, bytes: &[u8], place: usize, more: More) -> Option<Hit> {
        let known = match bytes.len().saturating_sub(place) {
            0 => false,
            1 => true,
            2..WORD => self.begin_pairs.has(pair(bytes, place)),
            _ => self.begins.at(word(bytes, place)),
        };
        known.then(|| self.at(bytes, place, more)).flatten()
    }

    /// A text that has come as far as here and began not before `from`; the first of several.
    fn before(&self, bytes: &[u8], from: usize, end: usize, more: More) -> Option<Hit> {
        let begin = end.checked_sub(MIN_BYTES).filter(|begin| *begin >= from)?;
        if !self.ends.at(word(bytes, end - WORD)) {
            return None;
        }
        let mut places = self.places(bytes, from, (begin, end)).into_iter();
        places.find_map(|place| self.at(bytes, place, more))
    }

    /// Where texts begin that have come as far as here, not before `from`; the first is first.
    fn places(&self, bytes: &[u8], from: usize, (begin, end): (usize, usize)) -> BTreeSet<usize> {
        let last = &bytes[begin..end];
        let first = self
            .tails
            .partition_point(|it| tail(&self.texts, *it) < last);
        let known = self.tails[first..].iter();
        let known = known.take_while(|it| tail(&self.texts, **it) == last);
        let places = known.flat_map(|(text, come)| {
            let text = &self.texts[*text as usize].text[..*come as usize];
            (0..MIN_BYTES).filter_map(move |start| {
                let piece = text.get(start..)?;
                let whole = piece.len() >= MIN_BYTES && bytes[from..end].ends_with(piece);
                whole.then(|| end - piece.len())
            })
        });
        places.collect()
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

fn tail(texts: &[Line], (text, come): (u32, u32)) -> &[u8] {
    &texts[text as usize].text[come as usize - MIN_BYTES..come as usize]
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
    if ENDS.iter().any(|end| end.starts_with(bytes)) {
        Gap::Open
    } else {
        Gap::None
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        for line in &mut self.texts {
            line.text.zeroize();
        }
    }
}
