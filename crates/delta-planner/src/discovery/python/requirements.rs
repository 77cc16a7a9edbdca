//! Files in a folder `requirements` that nothing installs, as far as can be told by their names: a
//! file that another names, which is read here, may be installed with it.

use std::collections::BTreeSet;

use crate::tree::{Tree, file_name, folder_of, join, resolve};

/// Lines of one file that are looked at.
const MAX_LINES: usize = 5_000;

/// Files of one project that are looked at: one has a handful, each by another.
const MAX_FILES: usize = 50;

/// Files that say what is installed, beside those of requirements.
const SETUPS: [&str; 3] = ["setup.py", "setup.cfg", "pyproject.toml"];

/// The names of the texts in the folder that neither these files of a project name, nor what they
/// are set up by, nor what those include.
pub fn unnamed(tree: &Tree, folder: &str, files: &[&str]) -> Vec<String> {
    let below = join(folder, "requirements");
    let mut unnamed = texts_of(tree, &below);
    let first = files.iter().chain(&SETUPS).map(|name| join(folder, name));
    let mut open: Vec<String> = first.collect();
    let mut seen = BTreeSet::new();
    while let Some(path) = open.pop() {
        if unnamed.is_empty() || seen.len() == MAX_FILES {
            break;
        }
        if !tree.has(&path) || !seen.insert(path.clone()) {
            continue;
        }
        let text = tree.text(&path).unwrap_or_default();
        for line in text.lines().take(MAX_LINES).map(str::trim) {
            if line.starts_with('#') {
                continue;
            }
            let included = included(line).and_then(|name| resolve(folder_of(&path), name));
            open.extend(included);
            // A `setup.py` may join the parts of a path by itself.
            let named = line.split(|c: char| !(c.is_alphanumeric() || "-_.".contains(c)));
            open.extend(named.filter_map(|name| Some(join(&below, &unnamed.take(name)?))));
        }
    }
    unnamed.into_iter().collect()
}

/// The file behind `-r`.
fn included(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("--requirement");
    let rest = rest.or(line.strip_prefix("-r"))?;
    rest.trim_start_matches(['=', ' ', '\t']).split(" #").next()
}

/// The names of the texts in a folder.
fn texts_of(tree: &Tree, folder: &str) -> BTreeSet<String> {
    let below = tree.below(folder).iter();
    let texts = below.filter(|it| it.ends_with(".txt") && folder_of(it) == folder);
    texts.map(|it| file_name(it).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_installed_by_another_file_is_not_among_them() {
        let setup = "open(os.path.join(HERE, 'requirements', 'base.txt'))\n# docs.txt\n";
        for (file, text, wanted) in [
            (
                "a/README.md",
                "-r requirements/base.txt",
                "base.txt docs.txt more.txt",
            ),
            (
                "a/requirements.txt",
                "-r requirements/base.txt # all\n",
                "docs.txt",
            ),
            (
                "a/requirements.txt",
                "--requirement=../all.txt\n",
                "docs.txt",
            ),
            (
                "a/requirements.txt",
                "# -r requirements/base.txt\n",
                "base.txt docs.txt more.txt",
            ),
            (
                "a/requirements.txt",
                "my-base.txt\n",
                "base.txt docs.txt more.txt",
            ),
            ("a/setup.py", setup, "docs.txt"),
            (
                "a/setup.cfg",
                "install_requires = file: requirements/docs.txt\n",
                "base.txt more.txt",
            ),
            (
                "a/pyproject.toml",
                "dependencies = { file = [\"requirements/docs.txt\"] }\n",
                "base.txt more.txt",
            ),
        ] {
            let files = [
                ("all.txt", "-r a/requirements/base.txt"),
                ("a/requirements/base.txt", "-r more.txt\nsix\n"),
                ("a/requirements/more.txt", "-r base.txt\n"),
                ("a/requirements/docs.txt", "sphinx\n"),
                (file, text),
            ];
            let tree = Tree::of(files.map(|(path, text)| (path.to_owned(), text.to_owned())));
            let names = unnamed(&tree, "a", &["requirements.txt"]).join(" ");
            assert_eq!(names, wanted, "{file}: {text}");
        }
    }

    #[test]
    fn a_long_row_of_files_ends() {
        let file = |n: usize| format!("requirements/{n}.txt");
        let files = (0..MAX_FILES * 2).map(|n| (file(n), format!("-r {}.txt\n", n + 1)));
        let root = ("requirements.txt".to_owned(), format!("-r {}\n", file(0)));
        let tree = Tree::of(files.chain([root]));
        let left = unnamed(&tree, "", &["requirements.txt"]);
        assert_eq!(left.len(), MAX_FILES);
    }
}
