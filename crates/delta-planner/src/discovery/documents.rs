//! Which files are documentation: nothing that runs reads them. A document that a build or a test
//! could read is none, and neither is one in a folder where tests or sources are, or one that is
//! gone.

use std::cell::RefCell;
use std::collections::HashMap;

use super::mentions::Mentions;
use crate::tree::{Tree, file_name, folder_of, join};

/// Ends of names that are text for people.
const ENDS: [&str; 5] = [".md", ".markdown", ".rst", ".adoc", ".asciidoc"];

/// Beginnings of names that are text for people, with such an end or `.txt` or none.
const NAMES: [&str; 9] = [
    "README",
    "LICENSE",
    "LICENCE",
    "COPYING",
    "NOTICE",
    "AUTHORS",
    "CHANGELOG",
    "CONTRIBUTING",
    "CODE_OF_CONDUCT",
];

/// Pictures, which are documentation in a folder of documents.
const PICTURES: [&str; 5] = [".png", ".svg", ".jpg", ".jpeg", ".gif"];

/// Folders of documents.
const FOLDERS: [&str; 3] = ["docs", "doc", "documentation"];

/// Folders in which text is what a program works on.
const SOURCES: [&str; 14] = [
    "src",
    "lib",
    "test",
    "tests",
    "testdata",
    "test-data",
    "fixtures",
    "__tests__",
    "content",
    "pages",
    "templates",
    "snapshots",
    "assets",
    "static",
];

/// Files of a package, and words in them that tell that it reads documents.
const READERS: [(&str, &[&str]); 5] = [
    (
        "package.json",
        // Prettier takes Markdown, too.
        &[
            "markdown",
            "remark",
            "docs",
            "prettier -",
            "cspell",
            "textlint",
        ],
    ),
    (
        "pyproject.toml",
        &["doctest-glob", "doctest_glob", "mkdocs", "sphinx"],
    ),
    ("pytest.ini", &["doctest-glob", "doctest_glob"]),
    ("tox.ini", &["doctest-glob", "sphinx", "mkdocs", "twine"]),
    ("noxfile.py", &["sphinx", "mkdocs", "twine"]),
];

/// Tells documents of one tree from sources; looks at each file that could read one only once.
pub struct Documents<'t> {
    tree: &'t Tree,
    mentions: Mentions<'t>,
    readers: RefCell<HashMap<String, bool>>,
}

impl<'t> Documents<'t> {
    pub fn new(tree: &'t Tree) -> Documents<'t> {
        Documents {
            tree,
            mentions: Mentions::new(tree),
            readers: RefCell::default(),
        }
    }

    /// Whether a change of this file changes nothing that runs, in these packages or elsewhere.
    pub fn has(&self, path: &str, packages: &[&str]) -> bool {
        // A build can want a document to be there and not care for what is in it.
        if !reads_like_one(path) || !self.tree.has(path) {
            return false;
        }
        let of_documents = |folder: &str| folder.split('/').any(|it| FOLDERS.contains(&it));
        // The site of the documentation is built from it.
        if packages.iter().any(|it| of_documents(it)) {
            return false;
        }
        if packages.iter().chain([&""]).any(|it| self.reads(it)) {
            return false;
        }
        // What no package has could be read by any of them.
        let around = packages.iter().min_by_key(|it| it.len());
        !self.mentions.mentioned(path, around.unwrap_or(&""))
    }

    fn reads(&self, folder: &str) -> bool {
        if let Some(known) = self.readers.borrow().get(folder) {
            return *known;
        }
        let reads = READERS.iter().any(|(name, words)| {
            let text = self.tree.text(&join(folder, name));
            text.is_ok_and(|text| words.iter().any(|word| text.contains(word)))
        });
        self.readers.borrow_mut().insert(folder.to_owned(), reads);
        reads
    }
}

fn reads_like_one(path: &str) -> bool {
    let mut folders = folder_of(path).split('/');
    if folders.any(|part| SOURCES.contains(&part)) {
        return false;
    }
    let name = file_name(path);
    let of_documents = folder_of(path).split('/').any(|it| FOLDERS.contains(&it));
    let beside = ends(name, &PICTURES) || name.ends_with(".txt");
    ends(name, &ENDS) || is_plain(name) || (of_documents && beside)
}

/// Whether a word could be the name of a document, or the end of one.
pub fn names_one(word: &str) -> bool {
    ends(word, &ENDS) || is_plain(word) || ends(word, &PICTURES) || word.ends_with(".txt")
}

fn ends(name: &str, ends: &[&str]) -> bool {
    ends.iter().any(|end| name.ends_with(end))
}

fn is_plain(name: &str) -> bool {
    NAMES.iter().any(|it| {
        let rest = name.strip_prefix(it);
        rest.is_some_and(|rest| {
            matches!(rest, "" | ".txt") || rest.starts_with(['-', '_']) && !rest.contains('.')
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_for_people_is_told_from_text_for_programs() {
        for path in [
            "README.md",
            "LICENSE",
            "LICENSE-MIT",
            "docs/a.png",
            "docs/x/y.rst",
            "docs/notes.txt",
            "crates/a/README.md",
            "CHANGELOG.txt",
        ] {
            assert!(reads_like_one(path), "{path}");
        }
        for path in [
            "requirements.txt",
            "src/page.md",
            "tests/data/a.md",
            "a.png",
            "docs/conf.py",
            "LICENSE.rs",
            "CMakeLists.txt",
            "content/post.md",
            "README.py",
        ] {
            assert!(!reads_like_one(path), "{path}");
        }
    }

    fn is_document(files: &[(&str, &str)], path: &str, package: &'static str) -> bool {
        let files = files
            .iter()
            .chain(&[("README.md", "# a"), ("docs/a.md", "# a")]);
        let tree = Tree::of(files.map(|(path, text)| ((*path).to_owned(), (*text).to_owned())));
        Documents::new(&tree).has(path, &[package])
    }

    #[test]
    fn a_document_that_a_build_reads_is_source() {
        assert!(is_document(&[("src/lib.rs", "fn a() {}")], "README.md", ""));
        let reads = [(
            "src/help.rs",
            "const A: &str = include_str!(\"../README.md\");",
        )];
        assert!(!is_document(&reads, "README.md", ""));
        assert!(is_document(&reads, "docs/a.md", ""));
        assert!(!is_document(&[("docs/conf.py", "")], "docs/a.md", "docs"));
        assert!(!is_document(
            &[("package.json", "prettier --check .")],
            "README.md",
            ""
        ));
    }

    #[test]
    fn a_document_that_is_gone_is_a_change() {
        let manifest = [("pyproject.toml", "[project]\nreadme = \"README.md\"\n")];
        assert!(is_document(&manifest, "README.md", ""));
        assert!(!is_document(&manifest, "docs/gone.md", ""));
    }
}
