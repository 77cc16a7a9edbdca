//! What reads the script of a step: a program and its arguments, the script being the last of them.
//!
//! Three are known by name. Any other is written out, so that nobody has to guess how a program
//! takes a script.

use serde::{Serialize, Serializer};

use crate::fields::Node;
use crate::invalid::Invalid;

/// Words of a shell: a program and its options.
pub const MAX_SHELL_WORDS: usize = 16;
/// Bytes of one of them.
pub const MAX_SHELL_WORD: usize = 256;

/// Shells that are known by name, and how each is started.
const KNOWN: [(&str, &[&str]); 3] = [
    ("sh", &["sh", "-e", "-c"]),
    // A failure on the left of a pipe is one, too.
    ("bash", &["bash", "-eo", "pipefail", "-c"]),
    ("python", &["python3", "-c"]),
];

/// Programs that people name alone, and how each takes a script as its last argument.
const OTHERS: [(&str, &str); 17] = [
    ("python3", "[python3, -c]"),
    ("node", "[node, -e]"),
    ("nodejs", "[nodejs, -e]"),
    ("bun", "[bun, -e]"),
    ("deno", "[deno, eval]"),
    ("perl", "[perl, -e]"),
    ("ruby", "[ruby, -e]"),
    ("php", "[php, -r]"),
    ("lua", "[lua, -e]"),
    ("julia", "[julia, -e]"),
    ("elixir", "[elixir, -e]"),
    ("Rscript", "[Rscript, -e]"),
    ("pwsh", "[pwsh, -Command]"),
    ("powershell", "[powershell, -Command]"),
    ("fish", "[fish, -c]"),
    ("cmd", "[cmd, /C]"),
    ("nu", "[nu, -c]"),
];

/// Other shells that are told like `sh`.
const LIKE_SH: [&str; 6] = ["dash", "ash", "zsh", "ksh", "mksh", "busybox"];

/// What to write for a program, as far as anybody knows how it takes a script.
fn written(program: &str) -> String {
    let name = program.rsplit('/').next().unwrap_or(program);
    let known = OTHERS.iter().find(|(other, _)| *other == name);
    match known {
        Some((_, words)) => format!("`shell: {words}`"),
        None if name == "busybox" => "`shell: [busybox, sh, -e, -c]`".to_owned(),
        None if LIKE_SH.contains(&name) => format!("`shell: [{program}, -e, -c]`"),
        None => {
            format!("`shell: [{program}, OPTION]` with the option behind which it takes a script")
        }
    }
}

/// A shell as it was written: the name of one that is known, or a program and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shell(Vec<String>);

impl Shell {
    /// The names of those that are known.
    pub fn names() -> [&'static str; 3] {
        KNOWN.map(|(name, _)| name)
    }

    /// Reads words; the reason why they are none.
    pub fn of(words: Vec<String>) -> Result<Shell, String> {
        let known = || Shell::names().join(", ");
        let odd = |word: &String| {
            word.is_empty() || word.len() > MAX_SHELL_WORD || word.chars().any(char::is_control)
        };
        match words.as_slice() {
            [] => Err(format!("names no program; known by name are {}", known())),
            words if words.len() > MAX_SHELL_WORDS => {
                Err(format!("has more than {MAX_SHELL_WORDS} words"))
            }
            words if words.iter().any(odd) => Err(format!(
                "has a word that is empty, longer than {MAX_SHELL_WORD} bytes, or no plain text"
            )),
            // Where a file with the script would stand elsewhere.
            [program, ..] if words.iter().any(|word| word.contains("{0}")) => {
                let name = program.rsplit('/').next().unwrap_or(program);
                let write = match KNOWN.iter().find(|(known, _)| *known == name) {
                    Some((name, words)) => {
                        format!("`shell: {name}`, which is `{}`", words.join(" "))
                    }
                    None => written(program),
                };
                Err(format!(
                    "has `{{0}}`, and a script is no file here but the last argument: write {write}"
                ))
            }
            [name] if !KNOWN.iter().any(|(known, _)| known == name) => Err(format!(
                "is none of {}; a script is the last argument: write {}",
                known(),
                written(name)
            )),
            _ => Ok(Shell(words)),
        }
    }

    /// Reads one text, words with blanks between them; the reason why it is none.
    pub fn parse(text: &str) -> Result<Shell, String> {
        Shell::of(text.split_whitespace().map(str::to_owned).collect())
    }

    /// It is what reads every script of which nothing is said.
    pub fn is_usual(&self) -> bool {
        self.0 == ["sh"]
    }

    /// The program and its arguments; the script is to follow.
    pub fn words(&self) -> Vec<String> {
        let known = match self.0.as_slice() {
            [name] => KNOWN.iter().find(|(known, _)| known == name),
            _ => None,
        };
        match known {
            Some((_, words)) => words.iter().map(|word| (*word).to_owned()).collect(),
            None => self.0.clone(),
        }
    }

    pub(crate) fn read(node: Node<'_>) -> Result<Shell, Invalid> {
        let shell = if node.raw().get().starts_with('[') {
            Shell::of(node.each(MAX_SHELL_WORDS, |it| it.string())?)
        } else {
            Shell::parse(&node.string()?)
        };
        shell.map_err(Invalid::here)
    }
}

impl Serialize for Shell {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [name] => to.serialize_str(name),
            words => to.collect_seq(words),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_is_a_known_name_or_a_command() {
        let words = |text| Shell::parse(text).map(|it| it.words().join(" "));
        assert_eq!(words("bash").as_deref(), Ok("bash -eo pipefail -c"));
        assert_eq!(words("python").as_deref(), Ok("python3 -c"));
        assert_eq!(words("node -e").as_deref(), Ok("node -e"));
        assert_eq!(words("bash -c").as_deref(), Ok("bash -c"));
        assert!(Shell::parse("sh").is_ok_and(|it| it.is_usual()));
        let alone = words("zsh").unwrap_err();
        assert!(alone.contains("is none of sh, bash, python"), "{alone}");
        assert!(alone.contains("`shell: [zsh, -e, -c]`"), "{alone}");
        for (text, advice) in [
            ("node", "`shell: [node, -e]`"),
            ("php", "`shell: [php, -r]`"),
            ("/usr/bin/perl", "`shell: [perl, -e]`"),
            ("python3", "`shell: [python3, -c]`"),
            ("mine", "`shell: [mine, OPTION]`"),
            (
                "bash -e {0}",
                "`shell: bash`, which is `bash -eo pipefail -c`",
            ),
            ("/bin/bash --norc {0}", "`shell: bash`"),
            ("python {0}", "`shell: python`"),
            ("perl {0}", "`shell: [perl, -e]`"),
            ("pwsh -command '. {0}'", "`shell: [pwsh, -Command]`"),
        ] {
            let said = words(text).unwrap_err();
            assert!(said.contains(advice), "{text}: {said}");
        }
        assert!(words("node {1}").is_ok());
        assert!(words("").is_err() && words(&"a ".repeat(17)).is_err());
        assert!(Shell::of(vec!["a".into(), "b\nc".into()]).is_err());
    }
}
