//! The shell's language, written and read. Names from a repository inside a step's script are data:
//! what a shell could read anything into is put between quotes, so that a folder called `$(id)`
//! stays a folder. Scripts of a repository are read into the words of their commands, and nothing
//! of them is expanded or run; what is more than a row of commands is told apart as such.

/// A word as a shell takes it, whatever is in it.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./@%+,:=".contains(c);
    if !word.is_empty() && word.chars().all(plain) && !word.starts_with('=') {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// One command of a script.
#[derive(Debug, PartialEq, Eq)]
pub struct Call {
    pub words: Vec<String>,
    /// It runs unless one before it failed, and what it prints is seen as it is: no pipe, no other
    /// outcome, no redirection, no loop.
    pub plain: bool,
}

/// Words with which something begins that is more than a row of commands.
const STRUCTURE: [&str; 16] = [
    "if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac",
    "function", "{", "}", "!",
];

/// Whether something larger begins or ends with this word: `then`, `{`.
pub fn is_structure(word: &str) -> bool {
    STRUCTURE.contains(&word)
}

/// The commands of a script, in the order in which they stand there.
pub fn calls(script: &str) -> Vec<Call> {
    let mut reader = Reader::default();
    let mut chars = script.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\'' | '"' | '`' => reader.quote(c, &mut chars),
            '\\' => match chars.next() {
                Some('\n') | None => {}
                Some(c) => reader.push(c),
            },
            '$' if chars.peek() == Some(&'(') => reader.substitution(&mut chars),
            '#' if reader.word.is_none() => while chars.next_if(|it| *it != '\n').is_some() {},
            '\n' | ';' => reader.end_group(),
            '&' if chars.next_if_eq(&'&').is_some() => reader.end_group(),
            '>' if reader.is_errors_to_output(&mut chars) => reader.word = None,
            // What stands below it is a text.
            '<' if chars.peek() == Some(&'<') => {
                reader.structured = true;
                reader.redirection(&mut chars);
            }
            '<' | '>' => reader.redirection(&mut chars),
            '&' if chars.next_if_eq(&'>').is_some() => reader.redirection(&mut chars),
            '&' | '|' => reader.operator(),
            '(' | ')' => {
                reader.structured = true;
                reader.end_group();
            }
            c if c.is_whitespace() => reader.end_word(),
            c => reader.push(c),
        }
    }
    reader.end_group();
    let structured = reader.structured;
    for call in &mut reader.calls {
        call.plain &= !structured;
    }
    reader.calls
}

type Chars<'s> = std::iter::Peekable<std::str::Chars<'s>>;

/// What was read so far.
#[derive(Default)]
struct Reader {
    word: Option<String>,
    words: Vec<String>,
    calls: Vec<Call>,
    /// Where the commands begin that pipes and the like join.
    group: usize,
    doubt: bool,
    structured: bool,
    /// The next word is a file, and no word of the command.
    file: bool,
}

impl Reader {
    fn push(&mut self, c: char) {
        self.word.get_or_insert_default().push(c);
    }

    fn quote(&mut self, mark: char, chars: &mut Chars<'_>) {
        self.word.get_or_insert_default();
        while let Some(c) = chars.next() {
            match c {
                c if c == mark => return,
                '\\' if mark != '\'' => chars.next().into_iter().for_each(|it| self.push(it)),
                c => self.push(c),
            }
        }
        // Nobody knows where it was to end.
        self.structured = true;
    }

    /// `$(…)`, whatever stands in it: it is part of a word.
    fn substitution(&mut self, chars: &mut Chars<'_>) {
        let mut depth = 0_usize;
        self.push('$');
        for c in chars.by_ref() {
            self.push(c);
            match c {
                '(' => depth += 1,
                ')' if depth == 1 => return,
                ')' => depth -= 1,
                _ => {}
            }
        }
        self.structured = true;
    }

    /// `2>&1` hides nothing.
    fn is_errors_to_output(&self, chars: &mut Chars<'_>) -> bool {
        let mut ahead = chars.clone();
        let there = self.word.as_deref() == Some("2")
            && ahead.next() == Some('&')
            && ahead.next() == Some('1');
        if there {
            *chars = ahead;
        }
        there
    }

    fn end_word(&mut self) {
        let word = self.word.take();
        if self.file && word.is_some() {
            self.file = false
        } else {
            self.words.extend(word)
        }
    }

    fn end_call(&mut self) {
        self.end_word();
        self.file = false;
        let words = std::mem::take(&mut self.words);
        if let Some(first) = words.first() {
            self.structured |= is_structure(first);
            self.calls.push(Call { words, plain: true });
        }
    }

    /// What leads what a command prints, or what it reads, elsewhere: `2> x`, `>> x`, `<< x`.
    fn redirection(&mut self, chars: &mut Chars<'_>) {
        self.doubt = true;
        let numbered = self.word.as_deref();
        if numbered.is_some_and(|it| it.bytes().all(|it| it.is_ascii_digit())) {
            self.word = None;
        }
        self.end_word();
        while chars
            .next_if(|it| matches!(it, '<' | '>' | '&' | '|'))
            .is_some()
        {}
        self.file = true;
    }

    /// What joins two commands.
    fn operator(&mut self) {
        self.doubt = true;
        self.end_call();
    }

    fn end_group(&mut self) {
        self.end_call();
        for call in &mut self.calls[self.group..] {
            call.plain = !self.doubt;
        }
        (self.group, self.doubt) = (self.calls.len(), false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Each command with its words, those that are not plain behind a question mark.
    fn read(script: &str) -> Vec<String> {
        let shown = |it: &Call| {
            let mark = if it.plain { "" } else { "?" };
            format!("{mark}{}", it.words.join("|"))
        };
        calls(script).iter().map(shown).collect()
    }

    #[test]
    fn commands_are_read_as_a_shell_would() {
        for (script, wanted) in [
            ("jest", &["jest"][..]),
            ("a b && c; d\ne", &["a|b", "c", "d", "e"]),
            ("a 'b c' \"d\\\" e\" f\\ g", &["a|b c|d\" e|f g"]),
            ("a | b && c", &["?a", "?b", "c"]),
            ("a || true", &["?a", "?true"]),
            ("a > out", &["?a"]),
            ("a >> out b 2>/dev/null; c &> d", &["?a|b", "?c"]),
            ("a <in 1>&2 && b", &["?a", "b"]),
            ("a 2>&1 b", &["a|b"]),
            ("a 2>&1 | b", &["?a", "?b"]),
            ("a &", &["?a"]),
            ("# a\nb # c\nd#e", &["b", "d#e"]),
            ("a \\\n  b", &["a|b"]),
            ("a $(b | c) d", &["a|$(b | c)|d"]),
            ("a `b | c`", &["a|b | c"]),
            ("(cd x && a)", &["?cd|x", "?a"]),
            ("if a; then b; fi", &["?if|a", "?then|b", "?fi"]),
            ("a <<E\nb\nE", &["?a", "?b", "?E"]),
            ("a 'b", &["?a|b"]),
            ("a \"b", &["?a|b"]),
            ("a $(b", &["?a|$(b"]),
            ("", &[]),
            ("&& || | ; (", &[]),
        ] {
            assert_eq!(read(script), wanted, "{script}");
        }
    }

    #[test]
    fn a_shell_reads_back_what_was_meant() {
        for word in [
            "plain",
            "@scope/ui",
            "",
            "two words",
            "$(id)",
            "`id`",
            "a'b",
            "a\"b",
            "*",
            "~",
            "!x",
            "a;b",
            "a&b",
            "ü",
            "-n",
            "#",
            "a\\b",
            "{a,b}",
        ] {
            let script = format!("printf '%s|' {}", quoted(word));
            let output = Command::new("sh").args(["-c", &script]).output();
            let said = String::from_utf8(output.expect("sh").stdout).expect("text");
            assert_eq!(said, format!("{word}|"), "{script}");
        }
    }
}
