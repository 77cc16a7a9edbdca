//! Which documents sources speak of: by the name of the file, by a folder above it, or by its kind,
//! as in `docs/*.md`. A source that names a document could read it.
//!
//! Sources are read only when somebody asks about a document, each folder once, up to a bound;
//! beyond it, and for what cannot be read, every document is taken as spoken of.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeSet, HashMap, HashSet};

use super::documents::names_one;
use crate::tree::{Tree, Unread, file_name, folder_of};

/// Files that are read for one plan: a few seconds, out of a commit.
const MAX_FILES: usize = 10_000;

/// Bytes of them.
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// Folders with other people's packages, which know nothing of the documents here.
const OTHERS: [&str; 5] = ["node_modules", ".venv", "venv", "vendor", "third_party"];

/// Ends of the names of sources, beside Rust's.
const CODE: [&str; 25] = [
    "py", "pyi", "go", "js", "mjs", "cjs", "jsx", "ts", "mts", "cts", "tsx", "vue", "svelte", "c",
    "h", "cc", "cpp", "hpp", "java", "kt", "rb", "php", "lua", "pl", "swift",
];

/// Ends of the names of scripts and settings that are no manifests: a name needs no quotes there.
const SETTINGS: [&str; 7] = ["ini", "mk", "sh", "bash", "cmake", "bazel", "just"];

/// Whole names of such.
const NAMES: [&str; 8] = [
    "Makefile",
    "makefile",
    "GNUmakefile",
    "justfile",
    "Justfile",
    "Dockerfile",
    "MANIFEST.in",
    "Rakefile",
];

/// What a manifest says for those who look at the package: the file must be there, and nothing
/// else about it matters.
const METADATA: [&str; 6] = [
    "readme",
    "license",
    "license-file",
    "license-files",
    "license_files",
    "files",
];

/// How a file writes names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// In quotes.
    Code,
    /// In quotes, and ends of names without their dot.
    Rust,
    /// Anyhow.
    Settings,
    /// Anyhow, and some of them only for people.
    Manifest,
}

/// What the sources below one folder speak of.
#[derive(Default)]
struct Words {
    /// Names of documents, and ends of such.
    names: BTreeSet<String>,
    /// Folders of this tree.
    folders: BTreeSet<String>,
    /// Not everything could be read.
    unknown: bool,
}

pub struct Mentions<'t> {
    tree: &'t Tree,
    /// What each folder of the tree is called.
    folders: OnceCell<HashSet<&'t str>>,
    at_root: OnceCell<Words>,
    below: RefCell<HashMap<String, Words>>,
    files: Cell<usize>,
    bytes: Cell<usize>,
}

impl<'t> Mentions<'t> {
    pub fn new(tree: &'t Tree) -> Mentions<'t> {
        Mentions {
            tree,
            folders: OnceCell::new(),
            at_root: OnceCell::new(),
            below: RefCell::default(),
            files: Cell::new(0),
            bytes: Cell::new(0),
        }
    }

    /// Whether a source below the folder, or one at the root, could read a document.
    pub fn mentioned(&self, path: &str, folder: &str) -> bool {
        let at_root = self.at_root.get_or_init(|| {
            let paths = self.tree.paths().iter();
            self.read(paths.filter(|it| !it.contains('/')))
        });
        let mut below = self.below.borrow_mut();
        let words = below
            .entry(folder.to_owned())
            .or_insert_with(|| self.read(self.tree.below(folder).iter()));
        let inner = path.strip_prefix(folder).unwrap_or(path);
        let inner = inner.trim_start_matches('/');
        words.mention(inner) || at_root.mention(inner)
    }

    fn read(&self, paths: impl Iterator<Item = &'t String>) -> Words {
        let folders = self.folders.get_or_init(|| {
            let folders = self.tree.paths().iter().map(|it| folder_of(it));
            let words = folders.flat_map(|it| it.split('/').map(last_word));
            words.filter(|it| !it.is_empty()).collect()
        });
        let others = |path: &str| folder_of(path).split('/').any(|it| OTHERS.contains(&it));
        let paths = paths.filter(|path| !others(path));
        let sources = paths.filter_map(|path| Some((path, kind(file_name(path))?)));
        let sources: Vec<(&String, Kind)> = sources.collect();
        let mut words = Words::default();
        let files = self.files.get() + sources.len();
        if files > MAX_FILES {
            words.unknown = true;
            return words;
        }
        self.files.set(files);
        for (path, kind) in sources {
            let text = if self.bytes.get() > MAX_BYTES {
                Err(Unread::Exhausted)
            } else {
                self.tree.text(path)
            };
            match text {
                Ok(text) => {
                    self.bytes.set(self.bytes.get() + text.len());
                    words.take(&text, kind, folders);
                }
                // A link: what it leads to is read where it is.
                Err(Unread::Missing) => {}
                Err(_) => {
                    words.unknown = true;
                    break;
                }
            }
        }
        words
    }
}

impl Words {
    /// Whether a document is spoken of, seen from that folder.
    fn mention(&self, path: &str) -> bool {
        let name = last_word(file_name(path));
        let end = name.rfind('.').map_or("", |dot| &name[dot..]);
        let mut folders = folder_of(path).split('/').map(last_word);
        self.unknown
            || self.names.contains(name)
            || self.names.contains(end)
            || folders.any(|it| self.folders.contains(it))
    }

    fn take(&mut self, text: &str, kind: Kind, folders: &HashSet<&str>) {
        for line in text.lines() {
            if kind == Kind::Manifest && is_metadata(line) {
                continue;
            }
            // Behind `://` stands a path on another machine.
            for (at, part) in line.split("://").enumerate() {
                let ends = |c: char| c.is_whitespace() || "\"'`<>()".contains(c);
                let here = match at {
                    0 => part,
                    _ => part.find(ends).map_or("", |end| &part[end..]),
                };
                let kind = if line.starts_with("//go:embed") {
                    Kind::Settings
                } else {
                    kind
                };
                self.take_words(here, kind, folders);
            }
        }
    }

    fn take_words(&mut self, text: &str, kind: Kind, folders: &HashSet<&str>) {
        let mut from = 0;
        while let Some(start) = text[from..].find(is_part) {
            let start = from + start;
            let end = text[start..].find(|c: char| !is_part(c));
            let end = end.map_or(text.len(), |end| start + end);
            from = end;
            let word = text[start..end].trim_end_matches('.');
            if names_one(word) {
                self.names.insert(word.to_owned());
            }
            let beside = |c: Option<char>| c.is_some_and(|c| "\"'`/".contains(c));
            let quoted =
                beside(text[..start].chars().next_back()) || beside(text[end..].chars().next());
            if kind == Kind::Rust && quoted && names_one(&format!(".{word}")) {
                self.names.insert(format!(".{word}"));
            }
            let bare = matches!(kind, Kind::Settings | Kind::Manifest);
            if (bare || quoted) && folders.contains(word) {
                self.folders.insert(word.to_owned());
            }
        }
    }
}

fn is_part(c: char) -> bool {
    c.is_alphanumeric() || "._-".contains(c)
}

/// The last part of a name that has spaces or signs in it: as much as is looked for.
fn last_word(name: &str) -> &str {
    name.rsplit(|c| !is_part(c)).next().unwrap_or(name)
}

fn is_metadata(line: &str) -> bool {
    let Some((key, _)) = line.split_once(['=', ':']) else {
        return false;
    };
    let key = key.trim().trim_matches('"');
    METADATA.iter().any(|it| key.eq_ignore_ascii_case(it))
}

fn kind(name: &str) -> Option<Kind> {
    let end = name.rsplit_once('.').map_or("", |(_, end)| end);
    match end {
        "rs" => Some(Kind::Rust),
        "toml" | "cfg" => Some(Kind::Manifest),
        _ if name == "package.json" => Some(Kind::Manifest),
        end if CODE.contains(&end) => Some(Kind::Code),
        end if SETTINGS.contains(&end) || NAMES.contains(&name) => Some(Kind::Settings),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mentioned(name: &str, text: &str, path: &str) -> bool {
        let files = [(name, text), (path, "")];
        let tree = Tree::of(files.map(|(path, text)| (path.to_owned(), text.to_owned())));
        Mentions::new(&tree).mentioned(path, "")
    }

    #[test]
    fn what_a_source_could_read_is_told_from_what_it_talks_about() {
        for (name, text, path) in [
            (
                "src/help.rs",
                "include_str!(\"../docs/help.md\")",
                "docs/help.md",
            ),
            ("build.rs", "for file in glob(\"guide/*\") {}", "guide/a.md"),
            ("build.rs", "path.extension() == Some(\"md\")", "a/b.md"),
            ("a.go", "//go:embed README.md", "README.md"),
            ("a.go", "//go:embed docs", "docs/a.rst"),
            ("setup.py", "open('README.rst').read()", "README.rst"),
            ("tool.py", "Path('.').glob('*.rst')", "docs/a.rst"),
            ("check.sh", "grep -q 1.2 CHANGELOG", "CHANGELOG"),
            ("check.sh", "sphinx-build -W docs out", "docs/index.rst"),
            (
                "tests/a.rs",
                "let text = read(\"LICENSE-MIT\");",
                "LICENSE-MIT",
            ),
            ("pytest.ini", "testpaths = docs tests", "docs/a.rst"),
            (
                "examples/a.py",
                "open('docs/my guide.md')",
                "docs/my guide.md",
            ),
        ] {
            assert!(mentioned(name, text, path), "{name}: {text}");
        }
        for (name, text, path) in [
            ("src/a.rs", "// The docs say more about it.", "docs/a.md"),
            (
                "src/a.rs",
                "//! See <https://a.org/docs/a.md>.",
                "docs/a.md",
            ),
            ("pyproject.toml", "readme = \"README.md\"", "README.md"),
            ("package.json", "  \"files\": [\"README.md\"],", "README.md"),
            ("a.go", "//go:embed other.txt", "docs/a.txt.md"),
            ("a.tsx", "<Button size=\"md\" />", "README.md"),
            ("data.csv", "README.md", "README.md"),
            ("node_modules/a/a.js", "'README.md'", "README.md"),
        ] {
            assert!(!mentioned(name, text, path), "{name}: {text}");
        }
    }

    #[test]
    fn what_cannot_be_read_could_speak_of_anything() {
        let long = "x".repeat(crate::tree::MAX_READ_BYTES + 1);
        assert!(mentioned("a.rs", &long, "README.md"));
        let many = (0..=MAX_FILES).map(|n| (format!("a/{n}.rs"), String::new()));
        let tree = Tree::of(many.chain([("b/b.rs".to_owned(), String::new())]));
        assert!(!Mentions::new(&tree).mentioned("b/README.md", "b"));
        assert!(Mentions::new(&tree).mentioned("README.md", ""));
    }
}
