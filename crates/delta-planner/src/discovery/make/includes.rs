//! Files that a makefile includes: their text in its place, where they are in the tree and their
//! names are plain. The others are named.

use std::collections::BTreeSet;

use crate::tree::{Tree, resolve};

/// Files that one makefile includes, one by another; a project with more keeps a build system.
const MAX_FILES: usize = 50;

/// Bytes of all of them.
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// Lines of one file that are looked at: as many as of the whole.
const MAX_LINES: usize = 100_000;

/// A makefile with the text of what it includes.
#[derive(Debug, Default)]
pub struct Whole {
    pub text: String,
    /// What it includes and is not read, as it is written there.
    pub unread: Vec<String>,
    /// What it includes only where that is there, under a name that is not plain.
    pub perhaps: Vec<String>,
}

/// The makefile of a folder, from which make reads all names.
pub fn whole(tree: &Tree, folder: &str, text: &str) -> Whole {
    let mut whole = Whole::default();
    let mut seen = BTreeSet::new();
    add(tree, folder, text, &mut seen, &mut whole);
    whole
}

fn add(tree: &Tree, folder: &str, text: &str, seen: &mut BTreeSet<String>, whole: &mut Whole) {
    let mut lines = text.lines().take(MAX_LINES);
    while let Some(line) = lines.next() {
        let Some((names, needed)) = included(line) else {
            whole.text.push_str(line);
            whole.text.push('\n');
            continue;
        };
        let mut names = names.to_owned();
        while names.ends_with('\\') {
            names.pop();
            names.push(' ');
            names.push_str(lines.next().unwrap_or_default());
        }
        let names = names.split(" #").next().unwrap_or_default();
        for name in split(names) {
            let plain = !name.contains(['$', '*', '?', '[']);
            let path = plain.then(|| resolve(folder, name)).flatten();
            let path = path.filter(|path| tree.has(path));
            if path.as_ref().is_some_and(|path| seen.contains(path)) {
                continue;
            }
            let room = seen.len() < MAX_FILES && whole.text.len() < MAX_BYTES;
            let read = path.as_ref().filter(|_| room).map(|path| {
                // Before it is read: what all manifests may have in bytes is counted there.
                seen.insert(path.clone());
                tree.text(path)
            });
            match read {
                Some(Ok(inner)) => add(tree, folder, &inner, seen, whole),
                _ if needed => whole.unread.push(name.to_owned()),
                // What is not there has no targets either.
                _ if plain && path.is_none() => {}
                _ => whole.perhaps.push(name.to_owned()),
            }
        }
    }
}

/// The names behind `include`, and whether the files have to be there.
fn included(line: &str) -> Option<(&str, bool)> {
    if line.starts_with('\t') {
        return None;
    }
    let (word, rest) = line.trim_start().split_once([' ', '\t'])?;
    let rest = rest.trim();
    let assigned = rest.starts_with(['=', ':', '+', '?']);
    match word {
        _ if assigned => None,
        "include" => Some((rest, true)),
        "-include" | "sinclude" => Some((rest, false)),
        _ => None,
    }
}

/// Names that blanks divide, but not those inside of `$(…)`.
fn split(names: &str) -> Vec<&str> {
    let (mut depth, mut start) = (0_usize, 0);
    let mut all = Vec::new();
    for (at, c) in names.char_indices() {
        match c {
            '(' | '{' => depth += 1,
            ')' | '}' => depth = depth.saturating_sub(1),
            c if c.is_whitespace() && depth == 0 => {
                all.push(&names[start..at]);
                start = at + c.len_utf8();
            }
            _ => {}
        }
    }
    all.push(&names[start..]);
    all.retain(|name| !name.is_empty());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_included_stands_in_its_place() {
        let tree = Tree::of([
            ("a/rules.mk".to_owned(), "test:\n\t./run\n".to_owned()),
            (
                "a/mk/more.mk".to_owned(),
                "include rules.mk mk/more.mk\nlint:\n".to_owned(),
            ),
        ]);
        let text = "include mk/more.mk \\\n  gone.mk # x\n-include local.mk $(wildcard *.d)\n\
                    build:\n\tinclude x\ninclude = y\n  sinclude $(DIR)/x.mk\n";
        let read = whole(&tree, "a", text);
        assert_eq!(
            read.text,
            "test:\n\t./run\nlint:\nbuild:\n\tinclude x\ninclude = y\n"
        );
        assert_eq!(read.unread, ["gone.mk"]);
        assert_eq!(read.perhaps, ["$(wildcard *.d)", "$(DIR)/x.mk"]);
    }

    #[test]
    fn a_file_is_read_once_however_often_it_is_included() {
        let long = format!("#{}\n", "x".repeat(1024 * 1024 - 2));
        let tree = Tree::of([
            ("long.mk".to_owned(), long.clone()),
            ("other.mk".to_owned(), "test:\n".to_owned()),
        ]);
        let read = whole(&tree, "", &format!("include{}\n", " long.mk".repeat(300)));
        assert!(read.text == long && read.unread.is_empty());
        assert_eq!(tree.text("other.mk").as_deref(), Ok("test:\n"));
    }

    /// Each line was joined with all before it.
    #[test]
    fn names_on_many_lines_are_read_in_time() {
        let start = std::time::Instant::now();
        let text = format!("include a \\\n{}", "a \\\n".repeat(260_000));
        let read = whole(&Tree::of([]), "", &text);
        assert_eq!(read.unread.len(), MAX_LINES);
        assert!(start.elapsed().as_secs() < 10, "took {:?}", start.elapsed());
    }
}
