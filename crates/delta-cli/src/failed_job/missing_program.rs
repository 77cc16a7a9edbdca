//! Which program was not there, by the last lines of a shell or of make: a guess that helps, and
//! nothing rests on it. What was printed is the job's own.

use delta_wire::api::FailureView;

/// Exit code of a shell that did not find a program.
const NOT_FOUND: i64 = 127;

/// Last lines that are looked at: make has more to say when one is missing. Of a step that ended
/// with 127, all.
const LAST: usize = 3;

/// Bytes of a program's name.
const MAX_NAME: usize = 100;

pub fn named(failure: &FailureView) -> Option<&str> {
    let last = &failure.last_lines;
    let looked_at = if failure.exit_code == Some(NOT_FOUND) {
        last.len()
    } else {
        LAST.min(last.len())
    };
    let mut newest = last.iter().rev().take(looked_at);
    newest.find_map(|line| of_line(line.trim()))
}

/// `make: uv: No such file or directory`, `/bin/sh: 1: uv: not found`, `bash: line 1: uv: command
/// not found`, `sh: uv: not found`.
fn of_line(line: &str) -> Option<&str> {
    let (who, _) = line.split_once(": ")?;
    let make = is_make(who) && line.ends_with(": No such file or directory");
    let not_found = line.ends_with(": not found") || line.ends_with(": command not found");
    let shell = is_shell(who) && not_found;
    let (before, _) = line.rsplit_once(": ").filter(|_| make || shell)?;
    let (_, name) = before.rsplit_once(": ")?;
    let plain = !name.is_empty() && name.len() <= MAX_NAME && !name.contains([' ', '`', '*']);
    plain.then_some(name)
}

/// `make`, and one that another started: `make[2]`.
fn is_make(who: &str) -> bool {
    let who = base_name(who);
    let level = |it: &str| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit());
    let inner = who
        .strip_suffix(']')
        .and_then(|it| it.rsplit_once('['))
        .filter(|(_, it)| level(it));
    matches!(inner.map_or(who, |(name, _)| name), "make" | "gmake")
}

/// A shell, or a script that it reads. More than one word is another program's sentence.
fn is_shell(who: &str) -> bool {
    let name = base_name(who);
    let known = matches!(name, "sh" | "bash" | "dash" | "ash" | "zsh" | "ksh");
    (known || name.ends_with(".sh")) && !who.contains(' ')
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named_in(lines: &[&str], exit_code: i64) -> Option<String> {
        let failure = FailureView {
            exit_code: Some(exit_code),
            last_lines: lines.iter().map(|it| (*it).to_owned()).collect(),
            ..FailureView::default()
        };
        named(&failure).map(str::to_owned)
    }

    #[test]
    fn shells_and_make_name_what_they_did_not_find() {
        for (line, wanted) in [
            ("make: uv: No such file or directory", Some("uv")),
            ("make[2]: ./tool: No such file or directory", Some("./tool")),
            ("sh: 1: golangci-lint: not found", Some("golangci-lint")),
            ("/bin/sh: 1: uv: not found", Some("uv")),
            ("sh: uv: not found", Some("uv")),
            ("bash: line 1: uv: command not found", Some("uv")),
            (
                "/usr/bin/gmake[1]: uv: No such file or directory",
                Some("uv"),
            ),
            ("./ci/run.sh: line 3: uv: command not found", Some("uv")),
            ("/usr/bin/zsh: line 1: uv: command not found", Some("uv")),
            ("error in publish: foo: not found", None),
            ("docker push: img: not found", None),
            ("publish: img: not found", None),
            ("git-push: img: command not found", None),
            ("error in /bin/sh: foo: not found", None),
            ("no run.sh: foo: not found", None),
            ("makefile:3: rules.mk: No such file or directory", None),
            ("make[a]: x: No such file or directory", None),
            ("cmake: x: No such file or directory", None),
            ("error: package: not found", None),
            ("make: *** [Makefile:2: test] Error 127", None),
            ("ls: x: No such file or directory", None),
            ("sh: not found", None),
        ] {
            assert_eq!(named_in(&[line], 2).as_deref(), wanted, "{line}");
        }
    }

    #[test]
    fn only_what_was_printed_last_is_a_hint_unless_the_shell_ended_with_it() {
        let lines = ["sh: 1: uv: not found", "1", "2", "3"];
        assert_eq!(named_in(&lines, 1), None);
        assert_eq!(named_in(&lines, 127).as_deref(), Some("uv"));
        assert_eq!(named_in(&lines[..2], 1).as_deref(), Some("uv"));
    }
}
