//! The text of a Rust file as tokens, as far as tests have to be told from text: comments, strings
//! and characters are gone, documentation, attributes and calls of macros are whole. It refuses
//! nothing: what does not end is said to be unclosed.

/// Something that stands in code.
#[derive(Debug, PartialEq, Eq)]
pub enum Token<'t> {
    /// A line of documentation; of what it stands in, or of what follows.
    Line {
        inner: bool,
        text: &'t str,
    },
    /// Documentation in a comment of its own.
    Block(&'t str),
    Attribute {
        inner: bool,
        text: String,
    },
    /// A name or a number, with its path.
    Word(&'t str),
    /// The path of a macro, before what it is given.
    Call(&'t str),
    Open(char),
    Close(char),
    Mark(char),
}

/// All tokens of a text, and whether each string, comment and attribute has an end.
pub fn tokens(text: &str) -> (Vec<Token<'_>>, bool) {
    let text = text.trim_start_matches('\u{feff}');
    let mut lexer = Lexer {
        text,
        at: 0,
        closed: true,
    };
    if text.starts_with("#!") && !text[2..].trim_start().starts_with('[') {
        lexer.pass_line();
    }
    let mut tokens = Vec::new();
    while lexer.at < text.len() {
        tokens.extend(lexer.next());
    }
    (tokens, lexer.closed)
}

struct Lexer<'t> {
    text: &'t str,
    at: usize,
    closed: bool,
}

impl<'t> Lexer<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    /// One token, or none where a space, a comment or a text was passed.
    fn next(&mut self) -> Option<Token<'t>> {
        let rest = self.rest();
        let c = rest.chars().next()?;
        if rest.starts_with("//") {
            return self.line();
        }
        if rest.starts_with("/*") {
            return self.block();
        }
        if c == '#' {
            let after = rest[1..].trim_start();
            let inner = after.starts_with('!');
            let after = after.strip_prefix('!').unwrap_or(after).trim_start();
            if after.starts_with('[') {
                self.at += rest.len() - after.len() + 1;
                return Some(self.attribute(inner));
            }
        }
        if self.passes_text() {
            return None;
        }
        if is_of_word(c) {
            if rest.starts_with("r#") {
                self.at += "r#".len();
            }
            return Some(self.word());
        }
        self.at += c.len_utf8();
        match c {
            '(' | '[' | '{' => Some(Token::Open(c)),
            ')' | ']' | '}' => Some(Token::Close(c)),
            _ if c.is_whitespace() => None,
            _ => Some(Token::Mark(c)),
        }
    }

    fn pass_line(&mut self) -> &'t str {
        let rest = self.rest();
        let line = &rest[..rest.find('\n').unwrap_or(rest.len())];
        self.at += line.len();
        line
    }

    /// `// …`
    fn line(&mut self) -> Option<Token<'t>> {
        let line = self.pass_line();
        let outer = line
            .strip_prefix("///")
            .filter(|it| !it.starts_with('/'))
            .map(|text| Token::Line { inner: false, text });
        let inner = || line.strip_prefix("//!");
        outer.or_else(|| inner().map(|text| Token::Line { inner: true, text }))
    }

    /// `/* … */`, with others in it.
    fn block(&mut self) -> Option<Token<'t>> {
        let rest = self.rest();
        let (mut depth, mut at) = (1, 2);
        while depth > 0 {
            let Some(found) = rest[at..].find(['/', '*']).map(|it| at + it) else {
                (self.closed, at) = (false, rest.len());
                break;
            };
            let mark = &rest.as_bytes()[found..];
            at = found + 1;
            if mark.starts_with(b"/*") {
                (depth, at) = (depth + 1, found + 2);
            } else if mark.starts_with(b"*/") {
                (depth, at) = (depth - 1, found + 2);
            }
        }
        self.at += at;
        let text = &rest[..at];
        let outer = text.starts_with("/**") && !text.starts_with("/***") && text != "/**/";
        (outer || text.starts_with("/*!")).then_some(Token::Block(text))
    }

    /// The text of an attribute, up to its bracket; comments in it are none of it.
    fn attribute(&mut self, inner: bool) -> Token<'t> {
        let (mut text, mut depth) = (String::new(), 1);
        while let Some(c) = self.rest().chars().next() {
            let from = self.at;
            if self.rest().starts_with("//") {
                self.pass_line();
                continue;
            }
            if self.rest().starts_with("/*") {
                self.block();
                continue;
            }
            if self.passes_text() {
                text.push_str(&self.text[from..self.at]);
                continue;
            }
            if is_of_word(c) {
                self.word();
                text.push_str(&self.text[from..self.at]);
                continue;
            }
            self.at += c.len_utf8();
            match c {
                '[' => depth += 1,
                ']' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                let text = text.trim().to_owned();
                return Token::Attribute { inner, text };
            }
            text.push(if c.is_whitespace() { ' ' } else { c });
        }
        self.closed = false;
        Token::Attribute { inner, text }
    }

    /// `a`, `a::b`, `a::b!`
    fn word(&mut self) -> Token<'t> {
        let rest = self.rest();
        let mut end = 0;
        loop {
            let part = &rest[end..];
            end += part.find(|c| !is_of_word(c)).unwrap_or(part.len());
            if rest[end..].starts_with("::") {
                end += 2
            } else {
                break;
            }
        }
        self.at += end;
        let after = &rest[end..];
        if after.starts_with('!') && !after.starts_with("!=") {
            self.at += 1;
            return Token::Call(&rest[..end]);
        }
        Token::Word(&rest[..end])
    }

    /// Passes a string, a raw string or a character.
    fn passes_text(&mut self) -> bool {
        let rest = self.rest();
        if rest.starts_with('\'') {
            return self.passes_character();
        }
        let raw = ["r", "br", "cr"]
            .iter()
            .find_map(|it| rest.strip_prefix(it))
            .filter(|it| it.trim_start_matches('#').starts_with('"'));
        if let Some(raw) = raw {
            let marks = raw.len() - raw.trim_start_matches('#').len();
            let from = rest.len() - raw.len() + marks + 1;
            let end = format!("\"{}", "#".repeat(marks));
            let found = rest[from..].find(&end).map(|it| from + it + end.len());
            self.closed &= found.is_some();
            self.at += found.unwrap_or(rest.len());
            return true;
        }
        let Some(text) = rest.strip_prefix('"') else {
            return false;
        };
        let mut escaped = false;
        let end = text.bytes().position(|c| {
            let ends = c == b'"' && !escaped;
            escaped = c == b'\\' && !escaped;
            ends
        });
        self.closed &= end.is_some();
        self.at += end.map_or(rest.len(), |it| it + 2);
        true
    }

    /// `'a'` and `'\''`, but not the lifetime `'a`: of that, the quote alone is passed.
    fn passes_character(&mut self) -> bool {
        let mut chars = self.rest().char_indices().skip(1);
        let end = match (chars.next(), chars.next()) {
            (Some((_, '\\')), Some(_)) => chars.find(|it| it.1 == '\'').map(|it| it.0),
            (Some(_), Some((at, '\''))) => Some(at),
            _ => Some(0),
        };
        self.closed &= end.is_some();
        self.at += end.map_or(self.rest().len(), |it| it + 1);
        true
    }
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}
