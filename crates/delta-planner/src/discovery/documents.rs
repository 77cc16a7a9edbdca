//! Which files are documentation: nothing that runs reads them. A document that a build or a test
//! could read is none, and neither is one in a folder where tests or sources are.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeSet, HashMap};

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
const READERS: [(&str, &[&str]); 6] = [
    ("build.rs", &[".md"]),
    ("package.json", &[".md", "markdown", "remark", "docs"]),
    (
        "pyproject.toml",
        &["doctest-glob", "doctest_glob", "mkdocs", "sphinx"],
    ),
    ("pytest.ini", &["doctest-glob", "doctest_glob"]),
    ("tox.ini", &["doctest-glob", "sphinx", "mkdocs"]),
    ("Makefile", &[".md", "markdown"]),
];

/// Files of a crate in which a document is usually put into the program.
const ROOTS: [&str; 2] = ["src/lib.rs", "src/main.rs"];

/// Tells documents of one tree from sources; looks at each file that could read one only once.
pub struct Documents<'t> {
    tree: &'t Tree,
    /// Folders of all packages.
    folders: Vec<&'t str>,
    /// Names of files that crates put into their programs.
    included: OnceCell<BTreeSet<String>>,
    readers: RefCell<HashMap<String, bool>>,
}

impl<'t> Documents<'t> {
    pub fn new(tree: &'t Tree, folders: Vec<&'t str>) -> Documents<'t> {
        Documents {
            tree,
            folders,
            included: OnceCell::new(),
            readers: RefCell::default(),
        }
    }

    /// Whether a change of this file changes nothing that runs, in these packages or elsewhere.
    pub fn has(&self, path: &str, packages: &[&str]) -> bool {
        if !reads_like_one(path) {
            return false;
        }
        let of_documents = |folder: &str| folder.split('/').any(|it| FOLDERS.contains(&it));
        // The site of the documentation is built from it.
        if packages.iter().any(|it| of_documents(it)) {
            return false;
        }
        let included = self.included.get_or_init(|| self.included());
        let read = packages.iter().chain([&""]).any(|it| self.reads(it));
        !included.contains(file_name(path)) && !read
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

    fn included(&self) -> BTreeSet<String> {
        let mut included = BTreeSet::new();
        for folder in &self.folders {
            for root in ROOTS {
                let text = self.tree.text(&join(folder, root)).unwrap_or_default();
                for rest in text.split("include_str!(").skip(1) {
                    let name = rest.split('"').nth(1).unwrap_or_default();
                    included.insert(file_name(name).to_owned());
                }
            }
        }
        included
    }
}

fn reads_like_one(path: &str) -> bool {
    let mut folders = folder_of(path).split('/');
    if folders.any(|part| SOURCES.contains(&part)) {
        return false;
    }
    let name = file_name(path);
    let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    let plain = NAMES.iter().any(|it| {
        let rest = name.strip_prefix(it);
        rest.is_some_and(|rest| {
            matches!(rest, "" | ".txt") || rest.starts_with(['-', '_']) && !rest.contains('.')
        })
    });
    let of_documents = folder_of(path).split('/').any(|it| FOLDERS.contains(&it));
    ends(&ENDS) || plain || (of_documents && (ends(&PICTURES) || name.ends_with(".txt")))
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

    #[test]
    fn a_document_that_a_build_reads_is_source() {
        let tree = |lib: &str| {
            let files = [
                ("README.md", "# a"),
                ("src/lib.rs", lib),
                ("Cargo.toml", ""),
            ];
            Tree::of(files.map(|(path, text)| (path.to_owned(), text.to_owned())))
        };
        let is_document = |tree: &Tree, path: &str, package: &'static str| {
            Documents::new(tree, vec![""]).has(path, &[package])
        };
        assert!(is_document(&tree("fn a() {}"), "README.md", ""));
        let reads = tree("#![doc = include_str!(\"../README.md\")]");
        assert!(!is_document(&reads, "README.md", ""));
        assert!(is_document(&reads, "CHANGELOG.md", ""));
        assert!(!is_document(&tree(""), "docs/a.md", "docs"));
    }
}
