//! Every page of the repository, and what of it is looked at: blocks, the lines outside of them,
//! and words between backticks.

use std::collections::BTreeMap;
use std::fs;

use delta_testkit::process::binary;

use super::{LEFT_OUT, TYPED, UNTYPED, consoles, read, repository};
use crate::harness::delta_ci;
use crate::harness::server::finish;
use crate::typist::blocks;

/// The files beside this one, for what they type.
const TESTS: [&str; 4] = [
    include_str!("functions.rs"),
    include_str!("local.rs"),
    include_str!("people.rs"),
    include_str!("servers.rs"),
];

/// Fences behind which people would look for commands.
const SHELLS: [&str; 8] = [
    "", "bash", "console", "sh", "shell", "terminal", "text", "zsh",
];

/// Programs that people type, behind such a fence.
const PROGRAMS: [&str; 24] = [
    "apt",
    "apt-get",
    "bash",
    "cargo",
    "cd",
    "cp",
    "curl",
    "delta-ci",
    "delta-runner",
    "docker",
    "export",
    "git",
    "install",
    "mkdir",
    "npm",
    "npx",
    "openssl",
    "pip",
    "printf",
    "python3",
    "rrq-runner",
    "ssh",
    "sudo",
    "systemctl",
];

/// Commands that pages name and that nobody types: we start them ourselves.
const INNER: [&str; 2] = ["shim", "runner-guard"];

/// Folders of the repository that have no pages of ours.
const NOT_OURS: [&str; 5] = ["target", "node_modules", "venv", "build", "fixtures"];

/// All pages, as paths from the root.
fn pages() -> Vec<String> {
    let (mut pages, mut folders) = (Vec::new(), vec![String::new()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(repository().join(&folder)).expect("a folder") {
            let entry = entry.expect("an entry");
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{folder}{name}");
            let is_folder = entry.file_type().expect("its type").is_dir();
            if is_folder && !name.starts_with('.') && !NOT_OURS.contains(&name.as_str()) {
                folders.push(format!("{path}/"));
            } else if !is_folder && name.ends_with(".md") {
                pages.push(path);
            }
        }
    }
    assert!(pages.len() > 50, "{pages:?}");
    pages
}

/// Whether somebody is to type this line of a block with this fence.
fn is_command(language: &str, line: &str) -> bool {
    let line = line.trim_start();
    let word = line.split_whitespace().next().unwrap_or_default();
    let anywhere = line.starts_with("$ ") || line.starts_with("delta-ci ");
    anywhere || (SHELLS.contains(&language) && PROGRAMS.contains(&word))
}

/// What of a page is a command and does not stand in a block of its kind.
fn hidden(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for block in blocks(text) {
        let language = block.language.split([' ', ',', '{']).next();
        let language = language.unwrap_or_default();
        if language == "console" {
            let first = block.text.lines().next().unwrap_or_default();
            if !first.starts_with("$ ") && !first.starts_with("# ") {
                found.push(first.to_owned());
            }
            continue;
        }
        let mut lines = block.text.lines().filter(|it| is_command(language, it));
        found.extend(lines.next().map(str::to_owned));
    }
    for line in outside(text) {
        let indented = line.starts_with("    ") || line.starts_with('\t');
        let command = line.trim_start().starts_with("$ ")
            || (indented && line.trim_start().starts_with("delta-ci "));
        if command || line.contains("<pre") {
            found.push(line.to_owned());
        }
    }
    found
}

/// The lines that are in no block.
fn outside(text: &str) -> Vec<&str> {
    let mut inside = false;
    let mut lines: Vec<&str> = text.lines().collect();
    lines.retain(|line| {
        let fence = line.trim_start().starts_with("```") || line.trim_start().starts_with("~~~");
        inside ^= fence;
        !inside && !fence
    });
    lines
}

#[test]
fn every_block_of_commands_is_typed_or_says_why_not() {
    let mut used = vec![false; TYPED.len() + UNTYPED.len()];
    let mut left = vec![false; LEFT_OUT.len()];
    for page in pages() {
        let hidden = hidden(&read(&page));
        assert!(
            hidden.is_empty(),
            "{page}: commands stand in blocks of ```console, behind `$ `: {hidden:#?}"
        );
        for block in consoles(&page) {
            let typed = TYPED.iter().map(|(of, begins)| (*of, *begins));
            let untyped = UNTYPED.iter().map(|(of, begins, _)| (*of, *begins));
            let place = untyped
                .chain(typed)
                .position(|(of, begins)| of == page && block.text.starts_with(begins));
            let place = place.unwrap_or_else(|| {
                panic!(
                    "{page}: nobody types this block; see tests/it/guides.rs\n{}",
                    block.text
                )
            });
            used[place] = true;
            for (at, (of, begins, _)) in LEFT_OUT.iter().enumerate() {
                let mut lines = block.text.lines();
                left[at] |= *of == page && lines.any(|line| line.starts_with(begins));
            }
        }
    }
    let unused = used.iter().chain(&left).position(|it| !it);
    assert_eq!(unused, None, "an entry of the lists is of no block");
    for (page, begins) in TYPED {
        let literal = format!("{begins:?}");
        let typed = TESTS.iter().any(|it| it.contains(&literal));
        assert!(typed, "{page}: {begins} is in the list and typed nowhere");
    }
}

#[test]
fn no_fence_hides_a_command() {
    for text in [
        "```\n$ make\n```\n",
        "```sh\ncargo build\n```\n",
        "```text\n  delta-ci up\n```\n",
        "~~~bash\nsudo reboot\n~~~\n",
        "````yaml\ndelta-ci run\n````\n",
        "- so:\n\n  ```\n  curl -s x\n  ```\n",
        "so:\n\n    delta-ci run\n",
        "so:\n\n  $ delta-ci run\n",
        "<pre>delta-ci run</pre>\n",
        "```console\ndelta-ci run\n```\n",
    ] {
        assert_eq!(hidden(text).len(), 1, "{text}");
    }
    for text in [
        "```console\n$ delta-ci run\nsaid\n```\n",
        "```yaml\nsteps:\n  - cargo test\n```\n",
        "```\nsaid: delta-ci run\n```\n",
        "`delta-ci run` is\ndelta-ci's own\n",
    ] {
        assert_eq!(hidden(text), Vec::<String>::new(), "{text}");
    }
}

/// Commands of ours in a page: of its blocks, and between backticks.
fn ours(page: &str) -> Vec<String> {
    let text = read(page);
    let blocks = blocks(&text)
        .into_iter()
        .map(|it| it.text.replace("\\\n", ""));
    let lines = blocks.flat_map(|it| it.lines().map(str::to_owned).collect::<Vec<_>>());
    let typed = lines.filter_map(|it| it.strip_prefix("$ ").map(str::to_owned));
    let prose = outside(&text).join("\n");
    let spans = prose.split('`').skip(1).step_by(2);
    let all = typed.chain(spans.map(|it| it.replace('\n', " ")));
    all.filter_map(|it| {
        let place = it.find("delta-ci ")?;
        let alone = place == 0 || it[..place].ends_with([' ', '(', '$']);
        let rest = it[place..].split(['|', ';', '&', '#', ')', '>']).next()?;
        alone.then(|| rest.to_owned())
    })
    .collect()
}

/// Options of a command by its own help.
fn help(words: &[&str]) -> Option<String> {
    let done = finish(delta_ci().args(words).arg("--help"));
    (done.code == Some(0)).then_some(done.stdout)
}

/// The names of what no page may say of our own program: commands and options that it has not.
#[test]
fn every_command_and_option_that_a_page_names_is_there() {
    binary("delta-ci").expect("the binary");
    let mut helps: BTreeMap<Vec<String>, Option<String>> = BTreeMap::new();
    let mut look = |words: &[&str]| {
        let key = words.iter().map(|it| (*it).to_owned()).collect();
        helps.entry(key).or_insert_with(|| help(words)).clone()
    };
    let mut wrong = Vec::new();
    // What changed once is told with the names of then.
    for page in pages().into_iter().filter(|it| it != "CHANGELOG.md") {
        for command in ours(&page) {
            let words: Vec<&str> = command.split_whitespace().skip(1).collect();
            let plain = |it: &&&str| it.chars().all(|c| c.is_ascii_lowercase() || c == '-');
            let words: Vec<&str> = words
                .split(|it| *it == "--")
                .next()
                .unwrap_or_default()
                .to_vec();
            let first = words.iter().find(|it| !it.starts_with('-'));
            let Some(first) = first.filter(|it| plain(it) && !INNER.contains(it)) else {
                continue;
            };
            let Some(mut known) = look(&[first]) else {
                wrong.push(format!("{page}: {command}"));
                continue;
            };
            let second = words.iter().skip_while(|it| it != &first).nth(1);
            if let Some(second) = second.filter(|it| plain(it) && !it.starts_with('-'))
                && known.contains(&format!("\n  {second} "))
            {
                known = look(&[first, second]).expect("a command of its parent");
            }
            for word in words.iter().filter(|it| it.starts_with("--")) {
                let name: String = word
                    .chars()
                    .take_while(|c| c.is_ascii_alphanumeric() || *c == '-')
                    .collect();
                let listed = known
                    .split_whitespace()
                    .any(|it| it.trim_end_matches([',', '.', ':', ';', ']']) == name);
                if !listed {
                    wrong.push(format!("{page}: {command}: {name}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
