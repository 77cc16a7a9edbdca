//! Patterns of conditions and triggers: paths that changed, names of branches and tags.
//!
//! `*` and `?` stay within one part of a name, `**` stands for any number of parts, `[a-z]` for one
//! of a range, `{a,b}` for either. Unlike the patterns of artifacts, a wildcard also stands for
//! names with a dot in front: a change of `.config/x` is a change. A pattern without wildcards that
//! names a folder means what is in it.
//!
//! A stranger writes the patterns: each is bounded, and matching never goes back over a name twice.

use std::fmt;

/// Bytes of one pattern: a path.
pub const MAX_PATTERN: usize = 512;
/// Texts that the braces of one pattern may stand for: each is matched on its own.
const MAX_ALTERNATIVES: usize = 64;
/// Characters of all these texts together: a word each. A long pattern repeats itself in each.
const MAX_EXPANDED: usize = 2048;

/// One pattern. Shown as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob {
    text: String,
    alternatives: Vec<Vec<Part>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// `**`
    Any,
    Name(Vec<Token>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Is(char),
    /// `?`
    One,
    /// `*`
    Many,
    /// `[a-z]`, or `[!a-z]` where the truth is false.
    Range(bool, Vec<(char, char)>),
}

impl Glob {
    /// The pattern, or why it is none.
    pub fn parse(text: &str) -> Result<Glob, &'static str> {
        if text.is_empty() {
            return Err("is empty");
        }
        if text.len() > MAX_PATTERN {
            return Err("is longer than 512 bytes");
        }
        if text.contains('\0') {
            return Err("holds a NUL character");
        }
        let letters: Vec<char> = text.chars().collect();
        let mut texts = Vec::new();
        expand(&letters, &mut texts).ok_or("stands for more than 64 texts")?;
        if texts.len() > 1 && texts.iter().map(Vec::len).sum::<usize>() > MAX_EXPANDED {
            return Err("stands for more than 2048 characters");
        }
        let alternatives = texts.iter().map(|text| parts(text));
        Ok(Glob {
            text: text.to_owned(),
            alternatives: alternatives.collect::<Result<_, _>>()?,
        })
    }

    /// Whether a whole name or path is meant.
    pub fn matches(&self, path: &str) -> bool {
        self.walk(path, false)
    }

    /// Whether a path is meant, or lies in a folder that is.
    pub fn covers(&self, path: &str) -> bool {
        self.walk(path, true)
    }

    fn walk(&self, path: &str, folders: bool) -> bool {
        let alternatives = self.alternatives.iter();
        alternatives
            .into_iter()
            .any(|parts| walk(parts, path, folders))
    }

    /// What it takes in memory, in characters of all that it stands for.
    pub(crate) fn weight(&self) -> usize {
        let parts = self.alternatives.iter().flatten();
        let letters = parts.map(|part| match part {
            Part::Any => 1,
            Part::Name(tokens) => 1 + tokens.len(),
        });
        letters.sum()
    }

    /// What every path that it covers begins with: where to look among sorted paths.
    pub(crate) fn prefix(&self) -> String {
        let [parts] = &self.alternatives[..] else {
            return String::new();
        };
        let mut prefix = String::new();
        for (at, part) in parts.iter().enumerate() {
            let Part::Name(tokens) = part else { break };
            if at > 0 {
                prefix.push('/');
            }
            for token in tokens {
                match token {
                    Token::Is(c) => prefix.push(*c),
                    _ => return prefix,
                }
            }
        }
        prefix
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// All ways through the parts at once, so that many `**` cost no more than their number.
fn walk(parts: &[Part], path: &str, folders: bool) -> bool {
    let mut open = vec![false; parts.len() + 1];
    open[0] = true;
    skip_any(parts, &mut open);
    for name in path.split('/') {
        if folders && open[parts.len()] {
            return true;
        }
        let mut next = vec![false; parts.len() + 1];
        for (at, part) in parts.iter().enumerate().filter(|(at, _)| open[*at]) {
            match part {
                Part::Any => next[at] = true,
                Part::Name(tokens) if fits(tokens, name) => next[at + 1] = true,
                Part::Name(_) => {}
            }
        }
        open = next;
        skip_any(parts, &mut open);
    }
    open[parts.len()]
}

/// `**` may also stand for nothing.
fn skip_any(parts: &[Part], open: &mut [bool]) {
    for at in 0..parts.len() {
        if open[at] && parts[at] == Part::Any {
            open[at + 1] = true;
        }
    }
}

/// One name against one part: the last `*` alone needs to be tried again.
fn fits(tokens: &[Token], name: &str) -> bool {
    let letters: Vec<char> = name.chars().collect();
    let (mut token, mut letter) = (0, 0);
    let mut again: Option<(usize, usize)> = None;
    while letter < letters.len() {
        let here = tokens.get(token);
        if here == Some(&Token::Many) {
            again = Some((token + 1, letter));
            token += 1;
        } else if here.is_some_and(|it| it.fits(letters[letter])) {
            token += 1;
            letter += 1;
        } else if let Some((after, from)) = again {
            again = Some((after, from + 1));
            (token, letter) = (after, from + 1);
        } else {
            return false;
        }
    }
    tokens[token..].iter().all(|it| *it == Token::Many)
}

impl Token {
    fn fits(&self, c: char) -> bool {
        match self {
            Token::Is(it) => *it == c,
            Token::One => true,
            Token::Many => false,
            Token::Range(inside, ranges) => {
                ranges.iter().any(|(from, to)| (*from..=*to).contains(&c)) == *inside
            }
        }
    }
}

/// Resolves the first braces, and those in what they stand for.
fn expand(text: &[char], into: &mut Vec<Vec<char>>) -> Option<()> {
    let Some((from, to, commas)) = braces(text) else {
        if into.len() >= MAX_ALTERNATIVES {
            return None;
        }
        into.push(text.to_vec());
        return Some(());
    };
    let mut start = from + 1;
    for end in commas.into_iter().chain([to]) {
        let words = [&text[..from], &text[start..end], &text[to + 1..]];
        expand(&words.concat(), into)?;
        start = end + 1;
    }
    Some(())
}

/// The first pair of braces, and the commas between them.
fn braces(text: &[char]) -> Option<(usize, usize, Vec<usize>)> {
    let from = text.iter().position(|c| *c == '{')?;
    let (mut depth, mut commas) = (0_usize, Vec::new());
    for (at, c) in text.iter().enumerate().skip(from) {
        match c {
            '{' => depth += 1,
            ',' if depth == 1 => commas.push(at),
            '}' if depth == 1 => return Some((from, at, commas)),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn parts(text: &[char]) -> Result<Vec<Part>, &'static str> {
    let text: Vec<char> = match text {
        ['.', '/', rest @ ..] => rest.to_vec(),
        all => all.to_vec(),
    };
    let mut parts = Vec::new();
    for name in text.split(|c| *c == '/') {
        match name {
            // `folder/` is the folder.
            [] => {}
            ['*', '*'] => parts.push(Part::Any),
            name => parts.push(Part::Name(tokens(name)?)),
        }
    }
    if parts.is_empty() {
        Err("names nothing")
    } else {
        Ok(parts)
    }
}

fn tokens(name: &[char]) -> Result<Vec<Token>, &'static str> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(c) = name.get(at) {
        at += 1;
        tokens.push(match c {
            '?' => Token::One,
            '*' => Token::Many,
            '[' => {
                let (token, after) = range(name, at)?;
                at = after;
                token
            }
            '\\' => {
                let next = name.get(at).ok_or("ends with a `\\`")?;
                at += 1;
                Token::Is(*next)
            }
            c => Token::Is(*c),
        });
    }
    tokens.dedup_by(|next, before| *next == Token::Many && *before == Token::Many);
    Ok(tokens)
}

/// What stands between `[` and `]`.
fn range(name: &[char], mut at: usize) -> Result<(Token, usize), &'static str> {
    let inside = !matches!(name.get(at), Some('!' | '^'));
    at += usize::from(!inside);
    let mut ranges = Vec::new();
    loop {
        let from = *name.get(at).ok_or("has a `[` without its `]`")?;
        if from == ']' && !ranges.is_empty() {
            return Ok((Token::Range(inside, ranges), at + 1));
        }
        let to = match (name.get(at + 1), name.get(at + 2)) {
            (Some('-'), Some(to)) if *to != ']' => *to,
            _ => from,
        };
        at += if to == from { 1 } else { 3 };
        ranges.push((from, to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn glob(text: &str) -> Glob {
        Glob::parse(text).unwrap_or_else(|why| panic!("{text}: {why}"))
    }

    #[test]
    fn wildcards_stay_within_their_part() {
        for (pattern, path, wanted) in [
            ("src/*.rs", "src/a.rs", true),
            ("src/*.rs", "src/a/b.rs", false),
            ("src/**", "src/a/b.rs", true),
            ("**/*.md", "README.md", true),
            ("**/*.md", "a/b/c.md", true),
            ("**/a/**/b", "x/a/y/z/b", true),
            ("release/*", "release/1.0", true),
            ("release/*", "release/1.0/x", false),
            ("v[0-9]*", "v12", true),
            ("v[!0-9]*", "v12", false),
            ("{a,b/{c,d}}/x", "b/d/x", true),
            ("{a,b}", "c", false),
            ("a?c", "aéc", true),
            (".config/**", ".config/x", true),
            ("**", ".github/x", true),
            ("*", ".env", true),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("./a", "a", true),
            ("main", "main", true),
            ("main", "main2", false),
        ] {
            assert_eq!(glob(pattern).matches(path), wanted, "{pattern} {path}");
        }
    }

    #[test]
    fn a_folder_covers_what_is_in_it() {
        assert!(glob("docs").covers("docs/a/b.md"));
        assert!(glob("docs/").covers("docs/a/b.md"));
        assert!(!glob("docs").matches("docs/a/b.md"));
        assert!(!glob("docs").covers("docs2/a"));
        assert!(glob("crates/*").covers("crates/a/src/x.rs"));
    }

    #[test]
    fn what_is_no_pattern_says_why() {
        for text in ["", "/", "[a", "a\\", &"x".repeat(600)] {
            assert!(Glob::parse(text).is_err(), "{text}");
        }
        assert!(Glob::parse(&"{a,b}".repeat(10)).is_err());
        assert!(Glob::parse("{a").is_ok(), "an open brace is a letter");
        let long = format!("{{a,b}}{{c,d}}{{e,f}}/{}", "x".repeat(300));
        assert!(Glob::parse(&long).is_err());
    }

    #[test]
    fn many_wildcards_cost_no_more_than_their_number() {
        let stars = glob(&format!("{}b", "*a".repeat(100)));
        assert!(!stars.matches(&"a".repeat(5_000)));
        let folders = glob(&format!("{}b", "**/a/".repeat(100)));
        assert!(!folders.matches(&"a/".repeat(2_000)));
    }

    #[test]
    fn the_prefix_is_what_every_match_begins_with() {
        assert_eq!(glob("crates/a/**").prefix(), "crates/a");
        assert_eq!(glob("src/l*").prefix(), "src/l");
        assert_eq!(glob("{a,b}/c").prefix(), "");
        assert_eq!(glob("**").prefix(), "");
    }
}
