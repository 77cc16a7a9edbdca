//! Just enough understanding of Rust text for the checks: what is code, and what is not.
//!
//! Owns blanking of comments and literals, so that a word in a comment or a brace in a string is
//! not taken for code. It refuses to be a parser: a check that needs more should be a lint.

use std::ops::Range;

/// The text with comments and the insides of literals turned into spaces; lines stay lines.
pub fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_or_comment_end(&chars, at);
        match end {
            Some(end) => {
                out.extend(
                    chars[at..end]
                        .iter()
                        .map(|c| if *c == '\n' { '\n' } else { ' ' }),
                );
                at = end;
            }
            None => {
                out.push(chars[at]);
                at += 1;
            }
        }
    }
    out
}

/// Each line of each comment, with its number from 1; what stands in literals is no comment.
pub fn comments(text: &str) -> Vec<(usize, String)> {
    let chars: Vec<char> = text.chars().collect();
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < chars.len() {
        let end = literal_or_comment_end(&chars, at).unwrap_or(at + 1);
        let part: String = chars[at..end].iter().collect();
        if part.starts_with('/') && part.len() > 1 {
            let lines = part.lines().enumerate();
            found.extend(lines.map(|(below, text)| (line + below, text.to_owned())));
        }
        line += part.matches('\n').count();
        at = end;
    }
    found
}

/// Where the comment or literal that starts at `at` ends; `None` when code starts there.
fn literal_or_comment_end(chars: &[char], at: usize) -> Option<usize> {
    let next = chars.get(at + 1).copied();
    match chars[at] {
        '/' if next == Some('/') => Some(find(chars, at, '\n')),
        '/' if next == Some('*') => Some(block_comment_end(chars, at)),
        '"' => Some(string_end(chars, at + 1)),
        '\'' => char_end(chars, at),
        'r' if !follows_word(chars, at) || chars[at - 1] == 'b' => raw_string_end(chars, at),
        _ => None,
    }
}

fn follows_word(chars: &[char], at: usize) -> bool {
    at > 0 && is_word(chars[at - 1])
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn find(chars: &[char], from: usize, wanted: char) -> usize {
    (from..chars.len())
        .find(|i| chars[*i] == wanted)
        .unwrap_or(chars.len())
}

fn block_comment_end(chars: &[char], at: usize) -> usize {
    let mut depth = 0;
    let mut i = at;
    while i < chars.len() {
        let pair = (chars[i], chars.get(i + 1).copied());
        match pair {
            ('/', Some('*')) => {
                depth += 1;
                i += 2;
            }
            ('*', Some('/')) => {
                depth -= 1;
                i += 2;
                if depth == 0 {
                    return i;
                }
            }
            _ => i += 1,
        }
    }
    chars.len()
}

fn string_end(chars: &[char], from: usize) -> usize {
    let mut i = from;
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            '"' => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

/// A quote opens a character only when it also closes it; otherwise it is a lifetime.
fn char_end(chars: &[char], at: usize) -> Option<usize> {
    if chars.get(at + 1) == Some(&'\\') {
        return Some((find(chars, at + 3, '\'') + 1).min(chars.len()));
    }
    (chars.get(at + 2) == Some(&'\'')).then_some(at + 3)
}

fn raw_string_end(chars: &[char], at: usize) -> Option<usize> {
    let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
    let open = at + 1 + hashes;
    if chars.get(open) != Some(&'"') {
        return None;
    }
    let closes = |i: &usize| {
        chars[*i] == '"'
            && chars[i + 1..]
                .iter()
                .take(hashes)
                .filter(|c| **c == '#')
                .count()
                == hashes
    };
    Some(
        (open + 1..chars.len())
            .find(closes)
            .map_or(chars.len(), |i| i + 1 + hashes),
    )
}

/// The line (from 0) where the inline test module begins, if there is one.
pub fn test_module_line(code: &str) -> Option<usize> {
    let lines: Vec<&str> = code.lines().collect();
    (0..lines.len()).find(|i| {
        let Some(rest) = lines[*i].trim().strip_prefix("#[cfg(test)]") else {
            return false;
        };
        // Attributes may stand between; `mod tests;` names another file and ends nothing here.
        std::iter::once(rest.trim())
            .chain(lines[i + 1..].iter().map(|line| line.trim()))
            .find(|line| !line.is_empty() && !line.starts_with("#["))
            .is_some_and(|line| line.contains("mod ") && line.ends_with('{'))
    })
}

/// Whether `word` stands in `line` on its own. Its edges count only where it begins or ends with
/// a letter, so that `println!` and `std::fs` work too.
pub fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let open = !word.starts_with(is_word) || !before.is_some_and(is_word);
        let close = !word.ends_with(is_word) || !after.is_some_and(is_word);
        open && close
    })
}

/// One function: its name and its lines (from 0, end exclusive).
pub struct Function {
    pub name: String,
    pub lines: Range<usize>,
}

/// Every function with a body, found by counting braces in blanked text.
pub fn functions(code: &str) -> Vec<Function> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        if code[..at].chars().next_back().is_some_and(is_word) {
            continue;
        }
        let rest = &code[at + 3..];
        let name: String = rest
            .trim_start()
            .chars()
            .take_while(|c| is_word(*c))
            .collect();
        if name.is_empty() {
            continue;
        }
        if let Some(end) = body_end(code, at) {
            let first = code[..at].matches('\n').count();
            let last = code[..end].matches('\n').count();
            found.push(Function {
                name,
                lines: first..last + 1,
            });
        }
    }
    found
}

/// The byte where the body of the function at `from` closes; `None` for a mere declaration.
fn body_end(code: &str, from: usize) -> Option<usize> {
    let mut brackets = 0i32;
    let mut braces = 0i32;
    for (i, c) in code[from..].char_indices() {
        match c {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets -= 1,
            ';' if brackets == 0 && braces == 0 => return None,
            '{' => braces += 1,
            '}' => {
                braces -= 1;
                if braces == 0 {
                    return Some(from + i);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        let text = "let a = \"x { \\\" y\"; // {\nlet b = '{'; /* { /* { */ */ let c: &'a str;";
        let code = code_only(text);
        assert!(!code.contains('{'), "{code}");
        assert!(code.contains("let c: &'a str;"), "{code}");
        assert_eq!(code.lines().count(), 2);
    }

    #[test]
    fn raw_strings_are_blanked_and_raw_names_are_not() {
        assert_eq!(code_only("r#\"a \" b\"# + r#type").trim(), "+ r#type");
        assert_eq!(code_only("br\"{\" ;").trim(), "b     ;");
        assert!(code_only("let var = 1;").contains("var"));
    }

    #[test]
    fn functions_end_at_their_own_brace() {
        let code = "impl A {\n  fn one() {\n    if x { y }\n  }\n  fn two(a: [u8; 2]);\n}\n";
        let found = functions(code);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].name.as_str(), found[0].lines.clone()),
            ("one", 1..4)
        );
    }

    #[test]
    fn only_an_inline_test_module_ends_the_counted_part() {
        assert_eq!(
            test_module_line("#[cfg(test)]\nmod tests;\nfn a() {}\n"),
            None
        );
        assert_eq!(
            test_module_line("fn a() {}\n#[cfg(test)]\nmod tests {\n}\n"),
            Some(1)
        );
        assert_eq!(test_module_line("#[cfg(test)]\nuse x;\n"), None);
    }

    #[test]
    fn words_have_edges() {
        assert!(has_word("use std::time::Duration;", "std::time"));
        assert!(!has_word("let is_f64x = 1;", "f64"));
        assert!(has_word("println!()", "println!"));
    }
}
