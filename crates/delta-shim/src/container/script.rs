//! What is said to a shell inside a container, and what it answers.
//!
//! A step's variables and its script go in through the standard input of a shell, as a text in
//! which every value is quoted: they are in no argument, in no environment of a program outside,
//! and in no file of the daemon's. What the step prints goes into the job's own pipe; the shell's
//! standard output is left for the answer.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use delta_wire::job_spec::is_shells_own;

use super::order::LOG;

/// The first process: says that it is there, and ends when its input does. It stands the signals
/// by which a job is asked to end.
pub(super) fn holder(key: &str) -> String {
    format!("trap '' HUP INT TERM; echo {key} $$; read -r delta_ci_end")
}

/// Signals everything in the container but its first processes and itself, and counts it. The
/// first argument is the number of the holder, the second a signal.
pub(super) const SWEEP: &str = r#"left=0
for p in /proc/[0-9]*; do
  p=${p#/proc/}
  case $p in 1|"$1"|$$) continue;; esac
  if kill "$2" "$p" 2>/dev/null; then left=$((left+1)); fi
  case $2 in -TERM) kill -CONT "$p" 2>/dev/null;; esac
done
echo "left $left""#;

/// Counts what the kernel ended for want of memory, in either kind of control group.
const COUNT_KILLS: &str = r#"delta_ci_kills() {
  for f in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
    if [ -r "$f" ]; then
      while read -r k v; do case $k in oom_kill) echo "$1 $v" >&3;; esac; done <"$f"
    fi
  done
}
"#;

fn can_be_said(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let plain = bytes.iter().all(fits) && bytes.first().is_some_and(|it| !it.is_ascii_digit());
    plain && !name.to_str().is_some_and(is_shells_own)
}

/// A step: its variables, its own shell, and the answer. None of the variables is ever in the
/// environment of the container program, which they could steer.
pub(super) fn step(
    env: &[(OsString, OsString)],
    script: &str,
    shell: Option<&[String]>,
) -> Vec<u8> {
    let mut text = Vec::with_capacity(script.len() + 1024);
    text.extend_from_slice(format!("exec 3>&1 >{LOG} 2>&1\n").as_bytes());
    text.extend_from_slice(COUNT_KILLS.as_bytes());
    text.extend_from_slice(
        // TERM is caught and not ignored: the step's own shell gets it as usual.
        b"trap : TERM\ndelta_ci_kills was\n\
          delta_ci_shell=$(command -v sh)\ndelta_ci_env=$(command -v env)\nset --\n",
    );
    let (said, handed): (Vec<_>, Vec<_>) = env.iter().partition(|(name, _)| can_be_said(name));
    for (name, value) in said {
        text.extend_from_slice(b"export ");
        text.extend_from_slice(name.as_bytes());
        text.push(b'=');
        quote(&mut text, value.as_bytes());
        text.push(b'\n');
    }
    if !handed.is_empty() {
        text.extend_from_slice(b"case $delta_ci_env in ?*) set -- \"$delta_ci_env\"");
        for (name, value) in handed {
            text.push(b' ');
            let pair = [name.as_bytes(), b"=", value.as_bytes()].concat();
            quote(&mut text, &pair);
        }
        text.extend_from_slice(b";; esac\n");
    }
    match shell.unwrap_or_default() {
        [] => text.extend_from_slice(b"\"$@\" \"$delta_ci_shell\" -e -c "),
        [program, rest @ ..] => {
            text.extend_from_slice(b"command -v ");
            quote(&mut text, program.as_bytes());
            text.extend_from_slice(
                b" >/dev/null 2>&1 || { echo 'no shell' >&3; exit 127; }\n\"$@\" ",
            );
            for word in std::iter::once(program).chain(rest) {
                quote(&mut text, word.as_bytes());
                text.push(b' ');
            }
        }
    }
    quote(&mut text, script.as_bytes());
    text.extend_from_slice(
        b" </dev/null 3>&-\ndelta_ci_end=$?\n\
          case $delta_ci_end in 0) ;; *) delta_ci_kills now;; esac\n\
          echo \"end $delta_ci_end\" >&3\nexit $delta_ci_end\n",
    );
    text
}

/// The part of the answer about memory, by itself.
pub(super) fn kills() -> Vec<u8> {
    format!("exec 3>&1\n{COUNT_KILLS}delta_ci_kills now\n").into_bytes()
}

/// One word to every shell, whatever is in it.
fn quote(text: &mut Vec<u8>, value: &[u8]) {
    text.push(b'\'');
    for byte in value {
        match byte {
            b'\'' => text.extend_from_slice(b"'\\''"),
            byte => text.push(*byte),
        }
    }
    text.push(b'\'');
}

/// What a step's shell answered.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ShellAnswer {
    /// Absent when it was ended before it could say so.
    pub code: Option<i32>,
    /// Processes that the kernel ended for want of memory while the step ran.
    pub kills: u64,
    /// It had ended some before that.
    pub killed_before: bool,
    /// The container counts them, so that none means none.
    pub counted: bool,
    /// The step's own shell is not there.
    pub no_shell: bool,
}

pub(super) fn answer(text: &str) -> ShellAnswer {
    let number = |word: &str| {
        let lines = text.lines().filter_map(|line| line.strip_prefix(word));
        lines
            .filter_map(|rest| rest.trim().parse::<u64>().ok())
            .next_back()
    };
    let (was, now) = (number("was "), number("now "));
    ShellAnswer {
        code: number("end ").and_then(|code| i32::try_from(code).ok()),
        kills: now.unwrap_or(0).saturating_sub(was.unwrap_or(0)),
        killed_before: was.is_some_and(|was| was > 0),
        counted: was.is_some() && now.is_some(),
        no_shell: text.lines().any(|line| line == "no shell"),
    }
}

/// How many processes a sweep found.
pub(super) fn left(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("left "));
    line.and_then(|rest| rest.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Lets this machine's own shell read the text, with a file for the pipe.
    fn spoken(env: &[(OsString, OsString)], script: &str) -> (Vec<u8>, ShellAnswer) {
        spoken_to(None, env, script)
    }

    fn spoken_to(
        shell: Option<&[String]>,
        env: &[(OsString, OsString)],
        script: &str,
    ) -> (Vec<u8>, ShellAnswer) {
        use std::io::{Read, Seek, Write};
        let place = tempfile::tempdir().expect("a folder");
        let log = place.path().join("log");
        let text = step(env, script, shell);
        let text = String::from_utf8_lossy(&text).into_owned();
        let shown = log.display().to_string();
        let mut input = tempfile::tempfile().expect("a file");
        let text = text.replacen(LOG, &shown, 1);
        input.write_all(text.as_bytes()).expect("written");
        input.rewind().expect("rewound");
        let output = Command::new("/bin/sh")
            .stdin(Stdio::from(input))
            .output()
            .expect("a shell");
        let mut printed = Vec::new();
        let mut file = std::fs::File::open(log).expect("a log");
        file.read_to_end(&mut printed).expect("read");
        (printed, answer(&String::from_utf8_lossy(&output.stdout)))
    }

    #[test]
    fn values_arrive_as_they_are() {
        let values = [
            ("QUOTES", "it's \"so\" '' '"),
            ("LINES", "a\nb\n\n c \n"),
            ("SIGNS", "$HOME `x` \\ \\n * ; & | # ! ~ \t"),
            ("EMPTY", ""),
            ("ÄÖ", "not a name a shell takes"),
            ("HOME", "/somewhere"),
        ];
        let own = |(name, value): (&str, &str)| (OsString::from(name), OsString::from(value));
        let env: Vec<_> = values.into_iter().map(own).collect();
        for (name, value) in &values[..4] {
            let (printed, answer) = spoken(&env, &format!("printf %s \"${name}\""));
            assert_eq!(String::from_utf8_lossy(&printed), *value, "{name}");
            assert_eq!(answer.code, Some(0));
        }
        let (printed, _) = spoken(&env, "env");
        let printed = String::from_utf8_lossy(&printed).into_owned();
        assert!(printed.contains("HOME=/somewhere\n"), "{printed}");
        let (printed, answer) = spoken(&env, "echo 'it'\"'\"'s'; exit 7");
        assert_eq!((printed.as_slice(), answer.code), (&b"it's\n"[..], Some(7)));
    }

    #[test]
    fn a_step_may_have_a_shell_of_its_own() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let bash = words("bash -eo pipefail -c");
        let odd = "echo \"it's\"; [[ a == a ]]; false | true; echo not reached";
        let (printed, answer) = spoken_to(Some(&bash), &[], odd);
        assert_eq!(printed, b"it's\n");
        assert_eq!((answer.code, answer.no_shell), (Some(1), false));
        let absent = words("no-such-shell -c");
        let (printed, answer) = spoken_to(Some(&absent), &[], "echo odd");
        assert_eq!((printed.as_slice(), answer.no_shell), (&b""[..], true));
    }

    #[test]
    fn what_steers_a_shell_is_not_said_to_it() {
        for name in ["IFS", "OPTIND", "PPID", "BASH_ENV", "a-b", "1A", ""] {
            assert!(!can_be_said(OsStr::new(name)), "{name}");
        }
        for name in ["PATH", "LD_PRELOAD", "DOCKER_HOST", "_x", "A1"] {
            assert!(can_be_said(OsStr::new(name)), "{name}");
        }
    }

    #[test]
    fn an_answer_counts_the_kills_of_its_own_step() {
        let text = "was 2\nnow 5\nend 137\n";
        let wanted = ShellAnswer {
            code: Some(137),
            kills: 3,
            killed_before: true,
            counted: true,
            no_shell: false,
        };
        assert_eq!(answer(text), wanted);
        assert!(!answer("was 2\nend 137\n").counted);
        assert_eq!(answer(""), ShellAnswer::default());
        assert_eq!(left("left 4\n"), Some(4));
        assert_eq!(left("sh: oops"), None);
    }
}
