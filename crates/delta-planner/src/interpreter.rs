//! How programs that many know take a script: as text behind an option, else they take a file's
//! name. A script is the last argument here, so that one without the option would look for a file
//! of that name.
//!
//! Only said of a program with nothing but options behind it: `bash wrap.sh` and `python -m tool`
//! are programs of their own, which may do with their last argument what they like.

/// A program, by what it is called without a version.
struct Interpreter {
    names: &'static [&'static str],
    /// The option behind which it takes a script.
    option: &'static str,
    /// Other words for that.
    also: &'static [&'static str],
    /// The letter for it among letters that stand together (`-ec`), and letters whose word goes on
    /// with something else (`-Wdefault`).
    letter: Option<char>,
    not_with: &'static [char],
    /// Options whose value is the next word.
    valued: &'static [&'static str],
}

static INTERPRETERS: [Interpreter; 7] = [
    Interpreter {
        names: &["sh", "bash", "dash", "ash", "zsh", "ksh", "mksh"],
        option: "-c",
        also: &[],
        letter: Some('c'),
        not_with: &[],
        valued: &["-O", "+O", "+o", "--rcfile", "--init-file"],
    },
    Interpreter {
        names: &["python", "pypy"],
        option: "-c",
        also: &["-m"],
        letter: Some('c'),
        not_with: &['W', 'X', 'm'],
        valued: &["-W", "-X", "--check-hash-based-pycs"],
    },
    Interpreter {
        names: &["node", "nodejs"],
        option: "-e",
        also: &["--eval", "-p", "-pe", "--print"],
        letter: None,
        not_with: &[],
        valued: &[
            "-r",
            "--require",
            "--import",
            "--loader",
            "-C",
            "--conditions",
        ],
    },
    Interpreter {
        names: &["perl"],
        option: "-e",
        also: &["-E", "-nE", "-pE", "-lE"],
        letter: Some('e'),
        not_with: &['M', 'm', 'I', 'd', 'C', 'x'],
        valued: &["-I"],
    },
    Interpreter {
        names: &["ruby"],
        option: "-e",
        also: &[],
        letter: Some('e'),
        not_with: &['I', 'r', 'E', 'W', 'C', 'x'],
        valued: &["-I", "-r", "-C", "-E"],
    },
    Interpreter {
        names: &["php"],
        option: "-r",
        also: &["--run", "-R", "-B", "-E"],
        letter: None,
        not_with: &[],
        valued: &["-d", "-c", "-z"],
    },
    Interpreter {
        names: &["pwsh", "powershell"],
        option: "-Command",
        also: &[
            "-c",
            "-command",
            "-CommandWithArgs",
            "-cwa",
            "-EncodedCommand",
        ],
        letter: None,
        not_with: &[],
        valued: &[
            "-ExecutionPolicy",
            "-WorkingDirectory",
            "-OutputFormat",
            "-InputFormat",
        ],
    },
];

/// The words to write where a program would take the script for a file's name.
pub(crate) fn instead(words: &[String]) -> Option<String> {
    // `env` and `busybox` only start another one.
    let starts = |it: &&String| ["env", "busybox"].contains(&base(it)) || it.contains('=');
    let at = words.iter().take_while(starts).count();
    let program = words.get(at)?;
    let named = base(program).trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    let known = INTERPRETERS.iter().find(|it| it.names.contains(&named))?;
    let mut options = words[at + 1..].iter();
    while let Some(word) = options.next() {
        if !word.starts_with(['-', '+']) || known.takes_text(word) {
            return None;
        }
        // `-o pipefail` of a shell may stand behind other letters.
        let set = known.names.contains(&"sh") && is_letters(word, 'o');
        if set || known.valued.contains(&word.as_str()) {
            options.next();
        }
    }
    // These say that a file follows.
    let file = |it: &&String| !["-", "--", "-f", "-s", "-File", "-file"].contains(&it.as_str());
    let mut written: Vec<&str> = words.iter().filter(file).map(String::as_str).collect();
    written.push(known.option);
    Some(written.join(" "))
}

impl Interpreter {
    fn takes_text(&self, word: &str) -> bool {
        let letters = |letter| is_letters(word, letter) && !word[1..].starts_with(self.not_with);
        word == self.option || self.also.contains(&word) || self.letter.is_some_and(letters)
    }
}

/// Whether a word is letters behind a dash, this one among them.
fn is_letters(word: &str, letter: char) -> bool {
    let letters = word.strip_prefix('-').unwrap_or_default();
    letters.contains(letter) && letters.chars().all(|c| c.is_ascii_alphanumeric())
}

fn base(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_would_take_a_file_is_told_how_it_takes_text() {
        for (text, wanted) in [
            ("bash -e", "bash -e -c"),
            ("bash -eo pipefail", "bash -eo pipefail -c"),
            (
                "/bin/bash --norc -O extglob",
                "/bin/bash --norc -O extglob -c",
            ),
            ("busybox sh", "busybox sh -c"),
            ("env A=b dash -e", "env A=b dash -e -c"),
            ("python -u", "python -u -c"),
            (
                "python3.12 -X dev -Wdecode",
                "python3.12 -X dev -Wdecode -c",
            ),
            ("node --require ./a.js", "node --require ./a.js -e"),
            ("perl -w -Mfeature", "perl -w -Mfeature -e"),
            ("ruby -rset", "ruby -rset -e"),
            ("php -d a=b", "php -d a=b -r"),
            ("pwsh -NoProfile -File", "pwsh -NoProfile -Command"),
        ] {
            assert_eq!(said(text).as_deref(), Some(wanted), "{text}");
        }
        for text in [
            "bash -c",
            "bash -c -e",
            "bash -euxo pipefail -c",
            "sh -ec",
            "zsh wrap.sh",
            "python3 -I -c",
            "python -uc",
            "python -m tool",
            "node -e",
            "node --input-type=module --eval",
            "perl -lne",
            "perl -E",
            "ruby -W -e",
            "php -r",
            "pwsh -NoProfile -c",
            "mine -e",
            "env",
            "busybox sh -e -c",
        ] {
            assert_eq!(said(text), None, "{text}");
        }
    }

    fn said(text: &str) -> Option<String> {
        let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
        instead(&words)
    }
}
