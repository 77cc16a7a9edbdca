//! Patterns of paths: `*`, `?` and `[a-z]` within one part of a path, `**` for any number of
//! folders, `{a,b}` for either. A pattern is matched part by part, so that a walk sees at each
//! folder whether anything below it can match at all.
//!
//! As in a shell, a wildcard matches no name that begins with a dot: `**` neither takes `.git`
//! along nor `.env`. A pattern that names a folder means everything in it, whatever it is called.

use delta_wire::job_spec::alternatives;

/// One pattern, its braces resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob {
    alternatives: Vec<Vec<Part>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// `**`
    Folders,
    Name(Vec<Token>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Is(u8),
    /// `?`
    One,
    /// `*`
    Any,
    /// `[a-z]`, or `[!a-z]`
    In(Vec<(u8, u8)>),
    NotIn(Vec<(u8, u8)>),
}

/// How far a walk has come with a pattern: (alternative, part) pairs that may go on from here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GlobPlace(Vec<(usize, usize)>);

/// What a name beneath a place means.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Met {
    /// The name is what the pattern names.
    pub matched: bool,
    /// Where to go on, if it is a folder.
    pub below: GlobPlace,
}

impl GlobPlace {
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// What it holds beside itself.
    pub fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<(usize, usize)>()
    }
}

impl Glob {
    /// Nothing when the braces stand for too much.
    pub fn parse(text: &str) -> Option<Glob> {
        let texts = alternatives(text)?;
        let alternatives = texts.iter().map(|text| parts(text)).collect();
        Some(Glob { alternatives })
    }

    /// The place of the root, and whether the pattern names the root itself.
    pub fn start(&self) -> Met {
        let all = (0..self.alternatives.len()).map(|alternative| (alternative, 0));
        self.settle(all.collect())
    }

    /// What a name means at a place.
    pub fn meet(&self, place: &GlobPlace, name: &[u8]) -> Met {
        let hidden = name.starts_with(b".");
        let mut next = Vec::new();
        for (alternative, at) in &place.0 {
            match self.alternatives[*alternative].get(*at) {
                Some(Part::Folders) if !hidden => next.push((*alternative, *at)),
                Some(Part::Name(tokens)) => {
                    let wild = !matches!(tokens.first(), Some(Token::Is(b'.')));
                    if !(hidden && wild) && fits(tokens, name) {
                        next.push((*alternative, *at + 1));
                    }
                }
                Some(Part::Folders) | None => {}
            }
        }
        self.settle(next)
    }

    /// `**` may also stand for no folder at all.
    fn settle(&self, mut open: Vec<(usize, usize)>) -> Met {
        let mut met = Met::default();
        while let Some((alternative, at)) = open.pop() {
            match self.alternatives[alternative].get(at) {
                None => met.matched = true,
                Some(part) => {
                    if *part == Part::Folders {
                        open.push((alternative, at + 1));
                    }
                    if !met.below.0.contains(&(alternative, at)) {
                        met.below.0.push((alternative, at));
                    }
                }
            }
        }
        met
    }

    /// Whether a whole path is meant, or lies in a folder that is.
    pub fn matches(&self, path: &str) -> bool {
        let mut met = self.start();
        for name in path.split('/') {
            if met.matched {
                return true;
            }
            met = self.meet(&met.below, name.as_bytes());
        }
        met.matched
    }
}

fn parts(text: &[u8]) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for part in text.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b"**" if parts.last() == Some(&Part::Folders) => {}
            b"**" => parts.push(Part::Folders),
            name => parts.push(Part::Name(tokens(name))),
        }
    }
    // What lies in a folder is not the folder: `dist/**` does not mean an empty one.
    if parts.last() == Some(&Part::Folders) {
        parts.push(Part::Name(vec![Token::Any]));
    }
    parts
}

fn tokens(name: &[u8]) -> Vec<Token> {
    let (mut tokens, mut at) = (Vec::new(), 0);
    while at < name.len() {
        let token = match name[at] {
            b'*' if tokens.last() == Some(&Token::Any) => {
                at += 1;
                continue;
            }
            b'*' => Token::Any,
            b'?' => Token::One,
            b'[' => match class(&name[at..]) {
                Some((token, length)) => {
                    at += length - 1;
                    token
                }
                None => Token::Is(b'['),
            },
            byte => Token::Is(byte),
        };
        tokens.push(token);
        at += 1;
    }
    tokens
}

/// `[a-z_]` at the beginning of a text, and how long it is; nothing when it is not closed.
fn class(text: &[u8]) -> Option<(Token, usize)> {
    let negated = matches!(text.get(1), Some(b'!' | b'^'));
    let first = 1 + usize::from(negated);
    let close = (first + 1..text.len()).find(|at| text[*at] == b']')?;
    let (mut ranges, mut at) = (Vec::new(), first);
    while at < close {
        if at + 2 < close && text[at + 1] == b'-' {
            ranges.push((text[at], text[at + 2]));
            at += 3;
        } else {
            ranges.push((text[at], text[at]));
            at += 1;
        }
    }
    let token = if negated {
        Token::NotIn(ranges)
    } else {
        Token::In(ranges)
    };
    Some((token, close + 1))
}

/// Matches with one step back per star, so in time of the product of both lengths.
fn fits(tokens: &[Token], name: &[u8]) -> bool {
    let (mut token, mut byte) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    loop {
        let one = name.get(byte).zip(tokens.get(token));
        match (one, tokens.get(token)) {
            (_, Some(Token::Any)) => {
                star = Some((token, byte));
                token += 1;
            }
            (Some((found, wanted)), _) if takes(wanted, *found) => {
                token += 1;
                byte += 1;
            }
            _ if token == tokens.len() && byte == name.len() => return true,
            _ => match star {
                Some((at, from)) if from < name.len() => {
                    star = Some((at, from + 1));
                    (token, byte) = (at + 1, from + 1);
                }
                _ => return false,
            },
        }
    }
}

fn takes(token: &Token, byte: u8) -> bool {
    let within = |ranges: &[(u8, u8)]| {
        ranges
            .iter()
            .any(|(low, high)| (*low..=*high).contains(&byte))
    };
    match token {
        Token::Is(it) => *it == byte,
        Token::One | Token::Any => true,
        Token::In(ranges) => within(ranges),
        Token::NotIn(ranges) => !within(ranges),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_a_shell_means() {
        for (pattern, yes, no) in [
            (
                "a.txt",
                &["a.txt"][..],
                &["b.txt", "a.txt.gz", "x/a.txt"][..],
            ),
            (
                "*.txt",
                &["a.txt", "ab.txt"],
                &["x/a.txt", ".a.txt", "a.txt2"],
            ),
            ("a?c", &["abc", "a-c"], &["ac", "abbc", "a/c"]),
            ("[a-c]x[!0-9]", &["axy", "cx-"], &["dxy", "ax1", "ax"]),
            (
                "**/*.xml",
                &["a.xml", "x/a.xml", "x/y/z/a.xml"],
                &["a.xml2", ".git/a.xml"],
            ),
            ("x/**", &["x/a", "x/y/b"], &["x", "y/x/a", "x/.hidden"]),
            (
                "x/**/y",
                &["x/y", "x/a/y", "x/a/b/y", "x/a/y/inside"],
                &["y", "x/a/yy"],
            ),
            (
                "dist",
                &["dist/a", "dist/.well-known/b"],
                &["dist2/a", "a/dist"],
            ),
            ("dist/", &["dist/a"], &["distant"]),
            ("./a/./b", &["a/b"], &["b"]),
            ("{a,b{1,2}}/x", &["a/x", "b1/x", "b2/x"], &["b/x", "c/x"]),
            (".cache/*", &[".cache/a"], &["cache/a", ".cache/.b"]),
            ("a*b*c", &["abc", "aXbYbZc"], &["ab", "acb"]),
            ("[", &["["], &["a"]),
            ("{a}", &["{a}"], &["a"]),
        ] {
            let glob = Glob::parse(pattern).expect(pattern);
            for path in yes {
                assert!(glob.matches(path), "{pattern} means {path}");
            }
            for path in no {
                assert!(!glob.matches(path), "{pattern} does not mean {path}");
            }
        }
    }

    // T11
    #[test]
    fn a_pattern_cannot_cost_more_than_it_is_worth() {
        assert_eq!(Glob::parse(&"{a,b}".repeat(7)), None);
        assert_eq!(Glob::parse(&"{a,b,c,d}".repeat(500)), None);
        let stars = format!("{}b", "*a".repeat(200));
        let glob = Glob::parse(&stars).expect("stars");
        assert!(!glob.matches(&"a".repeat(250)));
        let deep = Glob::parse(&"**/*/".repeat(100)).expect("deep");
        assert!(deep.matches(&vec!["x"; 100].join("/")));
    }

    #[test]
    fn a_walk_sees_where_nothing_can_match() {
        let glob = Glob::parse("target/*/report.xml").expect("a pattern");
        let start = glob.start();
        assert!(glob.meet(&start.below, b"node_modules").below.is_over());
        let below = glob.meet(&start.below, b"target").below;
        assert!(!glob.meet(&below, b"debug").below.is_over());
        assert!(Glob::parse(".").expect("a pattern").start().matched);
    }
}
