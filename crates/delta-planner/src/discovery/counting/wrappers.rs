//! Which program a command means: behind assignments, behind programs that only start another one,
//! behind `python -m` and `node`, or scripts of the same package by their names.

/// What a command comes to.
pub enum Meant {
    /// A program with its words, the program first and without its folder. `changed` says that the
    /// environment tells it what to print.
    Program {
        words: Vec<String>,
        changed: bool,
    },
    /// Scripts of the same package, and what more they are told.
    Scripts {
        names: Vec<String>,
        more: String,
    },
    Nothing,
}

/// A program that starts another one and prints nothing of its own that could be taken for tests:
/// how it begins, and its options that take a value.
struct Wrapper {
    words: &'static [&'static str],
    valued: &'static [&'static str],
}

const fn plain(words: &'static [&'static str]) -> Wrapper {
    Wrapper { words, valued: &[] }
}

const fn with(words: &'static [&'static str], valued: &'static [&'static str]) -> Wrapper {
    Wrapper { words, valued }
}

static WRAPPERS: [Wrapper; 31] = [
    plain(&["time"]),
    plain(&["exec"]),
    plain(&["command"]),
    with(&["sudo"], &["-u"]),
    with(&["nice"], &["-n"]),
    with(&["env"], &["-u", "-C"]),
    plain(&["cross-env"]),
    with(&["dotenv"], &["-e", "-f"]),
    with(&["xvfb-run"], &["-s", "--server-args", "-n", "-e", "-f"]),
    with(&["npx"], &["-p", "--package"]),
    plain(&["bunx"]),
    plain(&["pnpx"]),
    plain(&["npm", "exec"]),
    plain(&["pnpm", "exec"]),
    plain(&["pnpm", "dlx"]),
    plain(&["yarn", "exec"]),
    plain(&["yarn", "dlx"]),
    plain(&["bun", "x"]),
    with(
        &["c8"],
        &[
            "-r",
            "--reporter",
            "-o",
            "--reports-dir",
            "-x",
            "-n",
            "--src",
        ],
    ),
    with(&["nyc"], &["-r", "--reporter", "--report-dir", "-x", "-n"]),
    with(
        &["uv", "run"],
        &[
            "-p",
            "--python",
            "--extra",
            "--group",
            "--only-group",
            "--no-group",
            "--with",
            "--with-requirements",
            "--package",
            "--directory",
            "--project",
            "--env-file",
        ],
    ),
    with(&["uvx"], &["-p", "--python", "--with", "--from"]),
    plain(&["poetry", "run"]),
    plain(&["pdm", "run"]),
    plain(&["pipenv", "run"]),
    plain(&["hatch", "run"]),
    plain(&["rye", "run"]),
    plain(&["bundle", "exec"]),
    with(
        &["coverage", "run"],
        &[
            "--source",
            "--rcfile",
            "--omit",
            "--include",
            "--concurrency",
            "--context",
        ],
    ),
    with(&["timeout"], &["-k", "--kill-after", "-s", "--signal"]),
    plain(&["busybox"]),
];

/// Variables by which tools are told what to print.
const TELLING: [&str; 3] = ["PYTEST_ADDOPTS", "GOFLAGS", "NEXTEST_STATUS_LEVEL"];

/// Programs that only start others, one in another.
const MAX_WRAPPED: usize = 8;

/// What a command means. `named` tells which scripts the package has.
pub fn meant(words: &[&str], named: &dyn Fn(&str) -> bool) -> Meant {
    let mut words: Vec<&str> = words.to_vec();
    let mut changed = false;
    for _ in 0..MAX_WRAPPED {
        while let Some((name, value)) = words.first().and_then(|it| assigned(it)) {
            changed |= TELLING.contains(&name) || value.contains("reporter");
            words.remove(0);
        }
        if words.is_empty() {
            return Meant::Nothing;
        }
        if let Some(scripts) = scripts(&words, named) {
            return scripts;
        }
        if let Some(rest) = unwrapped(&words) {
            words = rest;
            continue;
        }
        let Some(program) = program(words[0]) else {
            return Meant::Nothing;
        };
        let other = match program {
            "node" | "nodejs" => by_node(&words[1..]),
            it if is_python(it) => by_python(&words[1..]),
            // `yarn jest`, `pnpm vitest run`
            "yarn" | "pnpm" => Some(words[1..].to_vec()),
            _ => None,
        };
        match other {
            Some(rest) => words = rest,
            None => {
                let rest = words[1..].iter().map(|it| (*it).to_owned());
                let words = std::iter::once(program.to_owned()).chain(rest).collect();
                return Meant::Program { words, changed };
            }
        }
    }
    Meant::Nothing
}

/// Wrappers that every system has, and that bring along nothing of what they start.
const SYSTEM: [&str; 8] = [
    "time", "exec", "command", "sudo", "nice", "env", "xvfb-run", "timeout",
];

/// The words of a command from the program on that must be there: behind assignments, and behind
/// what every system has to start another one.
pub fn behind_system<'w>(words: &[&'w str]) -> Vec<&'w str> {
    let mut words = words.to_vec();
    for _ in 0..MAX_WRAPPED {
        let start = words.iter().position(|it| assigned(it).is_none());
        words.drain(..start.unwrap_or(words.len()));
        let system = words.first().is_some_and(|it| SYSTEM.contains(it));
        match system.then(|| unwrapped(&words)).flatten() {
            Some(rest) => words = rest,
            None => break,
        }
    }
    words
}

/// `NAME=value`
fn assigned(word: &str) -> Option<(&str, &str)> {
    let (name, value) = word.split_once('=')?;
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let first = name.chars().next().is_some_and(|c| !c.is_ascii_digit());
    (plain && first).then_some((name, value))
}

/// The name of a program. One by its path is only known where programs are installed: a file of
/// the repository may be called as it likes.
fn program(word: &str) -> Option<&str> {
    let (folder, name) = word.rsplit_once('/').unwrap_or(("", word));
    let installed = folder.is_empty() || folder == "bin" || folder.ends_with("/bin");
    let installed = installed || folder.ends_with("/.bin") || folder.ends_with("\\Scripts");
    (installed || name == "manage.py").then_some(name)
}

fn is_python(name: &str) -> bool {
    let rest = name.strip_prefix("python").or(name.strip_prefix("pypy"));
    let version = |it: &str| it.chars().all(|c| c.is_ascii_digit() || c == '.');
    rest.is_some_and(version) || name == "{envpython}" || name == "py"
}

/// What a wrapper starts.
fn unwrapped<'w>(words: &[&'w str]) -> Option<Vec<&'w str>> {
    let first = program(words[0])?;
    let wrapper = WRAPPERS.iter().find(|it| {
        let inner = it.words.iter().zip(words).skip(1);
        it.words[0] == first && words.len() >= it.words.len() && inner.clone().all(|(a, b)| a == b)
    })?;
    let mut rest = words[wrapper.words.len()..].iter().copied().peekable();
    while let Some(word) = rest.next_if(|it| it.starts_with('-')) {
        match word {
            "--" => break,
            "-m" | "--module" => {
                return Some(
                    std::iter::once("python")
                        .chain([word])
                        .chain(rest)
                        .collect(),
                );
            }
            word if wrapper.valued.contains(&word) => drop(rest.next()),
            _ => {}
        }
    }
    // How long it may take comes first.
    if first == "timeout" {
        rest.next();
    }
    Some(rest.collect())
}

/// What Python runs: a module, or `manage.py`.
fn by_python<'w>(words: &[&'w str]) -> Option<Vec<&'w str>> {
    let mut rest = words.iter().copied();
    while let Some(word) = rest.next() {
        match word {
            "-m" | "--module" => return Some(rest.collect()),
            "-W" | "-X" => drop(rest.next()),
            "-c" => return Some(Vec::new()),
            word if word.starts_with('-') => {}
            word if word.ends_with("manage.py") => {
                return Some(std::iter::once("manage.py").chain(rest).collect());
            }
            _ => return Some(Vec::new()),
        }
    }
    Some(Vec::new())
}

/// Options of node that take a value.
const NODE_VALUED: [&str; 6] = [
    "-r",
    "--require",
    "--import",
    "--loader",
    "--experimental-loader",
    "--conditions",
];

/// What node runs: a tool among the installed packages. Its own runner is left as it is.
fn by_node<'w>(words: &[&'w str]) -> Option<Vec<&'w str>> {
    let mut rest = words.iter().copied();
    while let Some(word) = rest.next() {
        if word == "--test" {
            return None;
        }
        if NODE_VALUED.contains(&word) {
            rest.next();
            continue;
        }
        if word.starts_with('-') {
            continue;
        }
        let name = word.rsplit('/').next().unwrap_or(word);
        let name = name.split('.').next().unwrap_or(name);
        let installed = word.contains("node_modules/");
        return Some(if installed {
            std::iter::once(name).chain(rest).collect()
        } else {
            Vec::new()
        });
    }
    Some(Vec::new())
}

/// Scripts of the same package that a command starts.
fn scripts(words: &[&str], named: &dyn Fn(&str) -> bool) -> Option<Meant> {
    let manager = program(words[0])?;
    if matches!(manager, "run-s" | "run-p" | "npm-run-all" | "npm-run-all2") {
        let labels = words.iter().any(|it| matches!(*it, "-l" | "--print-label"));
        let names = words[1..].iter().filter(|it| !it.starts_with('-'));
        return Some(if labels {
            Meant::Nothing
        } else {
            Meant::Scripts {
                names: names.map(|it| (*it).to_owned()).collect(),
                more: String::new(),
            }
        });
    }
    if !matches!(manager, "npm" | "pnpm" | "yarn" | "bun") {
        return None;
    }
    let mut rest = words[1..].iter().copied().peekable();
    let elsewhere = |it: &str| {
        let it = it.split('=').next().unwrap_or(it);
        let options = [
            "--prefix", "-C", "--dir", "--cwd", "--filter", "-F", "-r", "-w", "-ws",
        ];
        options.contains(&it) || it.starts_with("--workspace") || it == "--recursive"
    };
    let mut run = false;
    while let Some(word) = rest.next() {
        if elsewhere(word) {
            return Some(Meant::Nothing);
        }
        let is_run = matches!(word, "run" | "run-script");
        if word.starts_with('-') || (is_run && !run) {
            run |= is_run;
            continue;
        }
        let name = match word {
            "t" | "tst" if manager == "npm" => "test",
            other => other,
        };
        // Of npm and bun only what is called so is a script: `bun test` is a runner of its own.
        let word_of_its_own = match manager {
            "npm" => run || matches!(name, "test" | "start"),
            "bun" => run,
            _ => true,
        };
        if !word_of_its_own || !named(name) {
            return None;
        }
        let more: Vec<&str> = rest.filter(|it| *it != "--").collect();
        let foreign = more.iter().any(|it| elsewhere(it));
        return Some(if foreign {
            Meant::Nothing
        } else {
            Meant::Scripts {
                names: vec![name.to_owned()],
                more: more.join(" "),
            }
        });
    }
    None
}
