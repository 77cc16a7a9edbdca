//! The text of a condition into words, each with its place in characters.

use super::parse::Fault;
use crate::foreign;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Word {
    Name(String),
    Text(String),
    Equal,
    Unequal,
    Like,
    And,
    Or,
    Not,
    Open,
    Close,
    Comma,
}

impl Word {
    pub fn shown(&self) -> String {
        match self {
            Word::Name(name) => name.clone(),
            Word::Text(text) => format!("\"{text}\""),
            Word::Equal => "==".to_owned(),
            Word::Unequal => "!=".to_owned(),
            Word::Like => "=~".to_owned(),
            Word::And => "&&".to_owned(),
            Word::Or => "||".to_owned(),
            Word::Not => "!".to_owned(),
            Word::Open => "(".to_owned(),
            Word::Close => ")".to_owned(),
            Word::Comma => ",".to_owned(),
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Placed {
    pub word: Word,
    pub at: usize,
    pub width: usize,
}

pub(super) fn words(text: &str) -> Result<Vec<Placed>, Fault> {
    let letters: Vec<char> = text.chars().collect();
    let mut words = Vec::new();
    let mut at = 0;
    while let Some(c) = letters.get(at) {
        let next = letters.get(at + 1).copied();
        let (word, width) = match (*c, next) {
            (c, _) if c.is_whitespace() => {
                at += 1;
                continue;
            }
            ('=', Some('=')) => (Word::Equal, 2),
            ('=', Some('~')) => (Word::Like, 2),
            ('!', Some('=')) => (Word::Unequal, 2),
            ('&', Some('&')) => (Word::And, 2),
            ('|', Some('|')) => (Word::Or, 2),
            ('!', _) => (Word::Not, 1),
            ('(', _) => (Word::Open, 1),
            (')', _) => (Word::Close, 1),
            (',', _) => (Word::Comma, 1),
            ('"' | '\'', _) => quoted(&letters, at)?,
            (c, _) if is_name(c) => {
                let width = letters[at..].iter().take_while(|c| is_name(**c)).count();
                let name = letters[at..at + width].iter().collect();
                (Word::Name(name), width)
            }
            (c, _) => return Err(strange(c, at, &letters[at + 1..])),
        };
        words.push(Placed { word, at, width });
        at += width;
    }
    Ok(words)
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-')
}

fn strange(c: char, at: usize, behind: &[char]) -> Fault {
    let behind = behind.iter().skip_while(|c| matches!(c, '{' | ' '));
    let name: String = behind.take_while(|c| is_name(**c)).collect();
    let foreign = match c {
        '$' => foreign::in_condition(&name),
        _ => None,
    };
    let hint = match c {
        '=' => "compare with `==`",
        '&' => "write `&&`",
        '|' => "write `||`",
        '$' | '{' => "write the name alone, such as `branch` or `inputs.level`",
        _ => "a text stands in quotes: `branch == \"main\"`",
    };
    Fault {
        at,
        width: 1,
        reason: format!("`{}` does not belong in a condition", c.escape_default()),
        hint: Some(foreign.unwrap_or_else(|| hint.to_owned())),
    }
}

/// A text in either quotes; a backslash keeps the next letter as it is.
fn quoted(letters: &[char], from: usize) -> Result<(Word, usize), Fault> {
    let mark = letters[from];
    let mut text = String::new();
    let mut at = from + 1;
    while let Some(c) = letters.get(at) {
        at += 1;
        match c {
            c if *c == mark => return Ok((Word::Text(text), at - from)),
            // Only what would end the text, or the mark itself: `\d` and `\*` are for patterns.
            '\\' if letters
                .get(at)
                .is_some_and(|c| matches!(c, '"' | '\'' | '\\')) =>
            {
                text.push(letters[at]);
                at += 1;
            }
            c => text.push(*c),
        }
    }
    Err(Fault {
        at: from,
        width: 1,
        reason: format!("this {mark} has no end"),
        hint: Some(format!("close the text with another {mark}")),
    })
}
