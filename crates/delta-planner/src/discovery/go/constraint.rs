//! Which files of Go are built where nobody says more: by the line `//go:build` and by what the
//! file is called. A tag that nobody sets is off. What depends on the machine is decided only
//! where every system that runs agents has the same answer.

use std::collections::BTreeSet;

/// Whether a file is part of what `go test ./...` builds.
#[derive(Debug, PartialEq, Eq)]
pub enum Built {
    Always,
    /// It needs one of these tags, which nobody sets by default.
    Behind(BTreeSet<String>),
    /// Nobody can say.
    Perhaps,
}

/// Systems and processors on which agents run.
const MACHINES: [(&str, &str); 4] = [
    ("linux", "amd64"),
    ("linux", "arm64"),
    ("darwin", "amd64"),
    ("darwin", "arm64"),
];

const SYSTEMS: [&str; 17] = [
    "aix",
    "android",
    "darwin",
    "dragonfly",
    "freebsd",
    "hurd",
    "illumos",
    "ios",
    "js",
    "linux",
    "nacl",
    "netbsd",
    "openbsd",
    "plan9",
    "solaris",
    "wasip1",
    "windows",
];

const PROCESSORS: [&str; 16] = [
    "386", "amd64", "arm", "arm64", "loong64", "mips", "mips64", "mips64le", "mipsle", "ppc64",
    "ppc64le", "riscv", "riscv64", "s390x", "sparc64", "wasm",
];

/// Lines before the word `package` that are looked at.
const MAX_LINES: usize = 1_000;

/// Bytes of one constraint; longer ones are left in doubt.
const MAX_BYTES: usize = 2_000;

/// Whether a file of this name and text is built.
pub fn built(name: &str, text: &str) -> Built {
    let named = by_name(name);
    let head = text.lines().take(MAX_LINES).map(str::trim);
    let mut head = head.take_while(|line| !line.starts_with("package "));
    let line = head
        .clone()
        .find_map(|line| line.strip_prefix("//go:build "));
    let stated = match line {
        Some(line) => by_line(line),
        // How it was written before Go 1.17.
        None if head.any(|line| line.starts_with("// +build ")) => Built::Perhaps,
        None => Built::Always,
    };
    match (named, stated) {
        (_, Built::Behind(tags)) => Built::Behind(tags),
        (true, Built::Always) => Built::Always,
        _ => Built::Perhaps,
    }
}

/// Whether a name is that of a file for every machine: `a_windows_test.go` is not.
fn by_name(name: &str) -> bool {
    let name = name.strip_suffix(".go").unwrap_or(name);
    let name = name.strip_suffix("_test").unwrap_or(name);
    let mut parts = name.split('_').skip(1);
    !parts.any(|part| SYSTEMS.contains(&part) || PROCESSORS.contains(&part))
}

fn by_line(line: &str) -> Built {
    let line = line.split("//").next().unwrap_or_default();
    if line.len() > MAX_BYTES {
        return Built::Perhaps;
    }
    let (mut some, mut every) = (false, true);
    let mut tags = BTreeSet::new();
    for machine in MACHINES {
        let mut reader = Reader {
            rest: line,
            machine,
            doubt: false,
            tags: BTreeSet::new(),
        };
        let value = reader.any(0);
        if reader.doubt || !reader.rest.trim().is_empty() {
            return Built::Perhaps;
        }
        some |= value;
        every &= value;
        tags.extend(reader.tags);
    }
    match (some, every) {
        (true, true) => Built::Always,
        // What is for another system than these is behind no tag.
        (false, _) if !tags.is_empty() => Built::Behind(tags),
        _ => Built::Perhaps,
    }
}

/// Brackets in brackets; nobody writes more.
const MAX_DEPTH: usize = 20;

/// A constraint that is being read, for one machine.
struct Reader<'t> {
    rest: &'t str,
    machine: (&'static str, &'static str),
    doubt: bool,
    /// Tags that are off.
    tags: BTreeSet<String>,
}

impl Reader<'_> {
    fn takes(&mut self, sign: &str) -> bool {
        let rest = self.rest.trim_start().strip_prefix(sign);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// `a || b`
    fn any(&mut self, depth: usize) -> bool {
        let mut value = self.all(depth);
        while self.takes("||") {
            value |= self.all(depth);
        }
        value
    }

    /// `a && b`
    fn all(&mut self, depth: usize) -> bool {
        let mut value = self.one(depth);
        while self.takes("&&") {
            value &= self.one(depth);
        }
        value
    }

    fn one(&mut self, depth: usize) -> bool {
        if depth > MAX_DEPTH {
            self.doubt = true;
            return false;
        }
        if self.takes("!") {
            return !self.one(depth + 1);
        }
        if self.takes("(") {
            let value = self.any(depth + 1);
            self.doubt |= !self.takes(")");
            return value;
        }
        let rest = self.rest.trim_start();
        let letter = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
        let end = rest.find(|c| !letter(c)).unwrap_or(rest.len());
        let (tag, rest) = rest.split_at(end);
        self.rest = rest;
        self.tag(tag)
    }

    fn tag(&mut self, tag: &str) -> bool {
        let (system, processor) = self.machine;
        let known = SYSTEMS.contains(&tag) || PROCESSORS.contains(&tag);
        match tag {
            it if it == system || it == processor => true,
            "unix" | "gc" => true,
            // Which compiler and which C there are is the machine's.
            "" | "cgo" | "gccgo" | "race" | "msan" | "asan" => {
                self.doubt = true;
                false
            }
            it if it.starts_with("go1.") || it.starts_with("goexperiment.") => {
                self.doubt = true;
                false
            }
            _ if known => false,
            other => {
                self.tags.insert(other.to_owned());
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(name: &str, line: &str) -> String {
        let text = format!("// Package a.\n\n{line}\n\npackage a\n//go:build no\n");
        match built(name, &text) {
            Built::Always => "always".to_owned(),
            Built::Perhaps => "perhaps".to_owned(),
            Built::Behind(tags) => tags.into_iter().collect::<Vec<_>>().join(" "),
        }
    }

    #[test]
    fn a_file_behind_a_tag_is_not_built() {
        for (line, wanted) in [
            ("", "always"),
            ("//go:build integration", "integration"),
            ("//go:build  e2e||integration // both", "e2e integration"),
            ("//go:build linux && e2e", "e2e"),
            ("//go:build !integration", "always"),
            ("//go:build !(a || b) && unix", "always"),
            ("//go:build linux || darwin", "always"),
            ("//go:build !windows", "always"),
            ("//go:build linux", "perhaps"),
            ("//go:build windows", "perhaps"),
            ("//go:build cgo", "perhaps"),
            ("//go:build go1.18", "perhaps"),
            ("//go:build (a", "perhaps"),
            ("//go:build a b", "perhaps"),
            ("// +build integration", "perhaps"),
        ] {
            assert_eq!(said("a_test.go", line), wanted, "{line}");
        }
        let deep = format!("//go:build {}a", "!".repeat(1_000));
        assert_eq!(said("a_test.go", &deep), "perhaps");
    }

    #[test]
    fn a_name_may_say_what_a_file_is_for() {
        for (name, wanted) in [
            ("a_windows_test.go", "perhaps"),
            ("a_linux_arm64_test.go", "perhaps"),
            ("windows_test.go", "always"),
            ("a_b_test.go", "always"),
        ] {
            assert_eq!(said(name, ""), wanted, "{name}");
        }
        assert_eq!(said("a_linux_test.go", "//go:build e2e"), "e2e");
    }
}
