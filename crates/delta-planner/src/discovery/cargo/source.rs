//! One source file of a crate, read token by token: its tests, the modules that it has in files of
//! their own, and under which conditions both are compiled. Nothing is expanded: what a macro is
//! given or could make is in doubt, and so is a whole file whose brackets or texts do not end.

use std::collections::BTreeSet;

use super::cfg::Wanted;
use super::lexer::{Token, tokens};

/// Brackets in one another; beyond it nobody wrote them by hand.
const MAX_LEVELS: usize = 500;

/// A module in a file of its own.
#[derive(Debug, PartialEq, Eq)]
pub struct Module {
    pub name: String,
    /// Where `#[path = "…"]` says it is.
    pub path: Option<String>,
    pub wanted: Wanted,
}

/// Something that could be a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// An example in documentation.
    pub documentation: bool,
    pub wanted: Wanted,
}

/// What stands in a file.
#[derive(Debug, Default)]
pub struct Source {
    pub tests: Vec<Test>,
    pub modules: Vec<Module>,
    /// Files whose text is documentation here, relative to this one.
    pub documents: Vec<(Option<String>, Wanted)>,
}

impl Source {
    /// Reads a file; `whole` is what it is compiled with, `on` are features that are on by default.
    pub fn read(text: &str, whole: Wanted, on: &BTreeSet<&str>) -> Source {
        let mut reader = Reader {
            on,
            whole,
            item: Item::default(),
            levels: Vec::new(),
            own: BTreeSet::new(),
            inner: 0,
            fence: None,
            blank: true,
            broken: false,
            source: Source::default(),
        };
        let (tokens, closed) = tokens(text);
        for token in &tokens {
            reader.token(token);
            reader.broken |= reader.levels.len() > MAX_LEVELS;
            if reader.broken {
                break;
            }
        }
        reader.of_above();
        reader.begin();
        if !closed || reader.broken || !reader.levels.is_empty() {
            reader.doubt_all();
        }
        reader.source
    }
}

/// What stands between brackets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A file or a module: here are tests.
    Module,
    /// Parts of a type, of a trait or of an implementation: here is documentation.
    Parts,
    /// A function, or an expression.
    Body,
    /// Parentheses and brackets: they are a part of an item.
    Within,
    /// What a macro is given.
    Input,
    /// `macro_rules!`
    Definition,
}

/// Brackets that are open.
struct Level {
    closes: char,
    place: Place,
    /// What was wanted outside of them.
    outside: Wanted,
}

/// An item, from its attributes to its end.
#[derive(Default)]
struct Item {
    wanted: Wanted,
    path: Option<String>,
    is_test: bool,
    could_be: bool,
    /// Examples in its documentation.
    examples: usize,
    /// Documents that are its documentation.
    documents: usize,
    begun: bool,
    /// What decides its kind: `mod`, `fn`, `impl`, ….
    kind: Option<String>,
    /// The name behind `mod`.
    name: Option<String>,
    /// The macro that is called by the token before.
    call: Option<String>,
}

struct Reader<'a> {
    on: &'a BTreeSet<&'a str>,
    /// What is wanted by all that is open, and by the whole file.
    whole: Wanted,
    item: Item,
    levels: Vec<Level>,
    /// Macros that are defined above.
    own: BTreeSet<String>,
    /// Examples of the module itself, whose attributes are not all read.
    inner: usize,
    /// The mark of a block of documentation.
    fence: Option<&'static str>,
    /// The line of documentation before had nothing in it.
    blank: bool,
    /// Brackets do not fit.
    broken: bool,
    source: Source,
}

impl Reader<'_> {
    fn place(&self) -> Place {
        self.levels.last().map_or(Place::Module, |it| it.place)
    }

    fn token(&mut self, token: &Token) {
        match token {
            Token::Line { inner, text } => return self.documentation(*inner, text),
            Token::Attribute { inner: true, text } => return self.of_file(text),
            _ => self.of_above(),
        }
        match token {
            Token::Block(text) if text.contains("```") => self.could_be(true),
            Token::Block(_) | Token::Line { .. } => {}
            Token::Attribute { text, .. } => self.of_item(text),
            Token::Word(word) => self.word(word),
            Token::Call(path) => {
                self.begin();
                self.call(path);
            }
            Token::Open(mark) => self.open(*mark),
            Token::Close(mark) => self.close(*mark),
            Token::Mark(mark) => self.mark(*mark),
        }
    }

    /// The first word of an item: its attributes and its documentation are read.
    fn begin(&mut self) {
        (self.fence, self.blank) = (None, true);
        if std::mem::replace(&mut self.item.begun, true) {
            return;
        }
        if self.item.is_test || self.item.could_be {
            let mut wanted = self.wanted();
            wanted.doubt |= !self.item.is_test || self.place() != Place::Module;
            self.test(wanted);
        }
        let mut wanted = self.wanted();
        wanted.doubt |= !matches!(self.place(), Place::Module | Place::Parts);
        let count = std::mem::take(&mut self.item.examples);
        self.examples(count, wanted);
    }

    fn word(&mut self, word: &str) {
        self.begin();
        match (self.item.kind.as_deref(), self.item.call.take()) {
            // `macro_rules! name`
            (_, Some(call)) if call == "macro_rules" => {
                self.own.insert(word.to_owned());
                self.item.call = Some(call);
            }
            (None, None) if KINDS.contains(&word) => self.item.kind = Some(word.to_owned()),
            (Some("mod"), None) if self.item.name.is_none() => {
                self.item.name = Some(word.to_owned());
            }
            _ => {}
        }
    }

    fn call(&mut self, path: &str) {
        self.item.call = Some(path.to_owned());
        let name = path.rsplit("::").next().unwrap_or(path);
        let place = self.place();
        if PROPERTIES.contains(&name) {
            let mut wanted = self.wanted();
            wanted.doubt |= place != Place::Module;
            return self.test(wanted);
        }
        let known = HARMLESS.contains(&name) || name.contains("assert") || self.own.contains(path);
        let makes = name.contains("test") || name == "include" || path.starts_with("automod");
        // In an item that has a kind, it is an expression or a type.
        let of_items = place == Place::Module && self.item.kind.is_none();
        if makes || (!known && (of_items || place == Place::Definition)) {
            self.could_be(false);
        }
    }

    fn open(&mut self, mark: char) {
        self.begin();
        let outside = self.whole.clone();
        let (place, kind) = (self.place(), self.item.kind.as_deref());
        let place = match (place, self.item.call.take(), mark) {
            (Place::Input | Place::Definition | Place::Within, _, _) => place,
            (_, Some(call), _) if call == "macro_rules" => Place::Definition,
            (Place::Module, Some(call), _) if is_property(&call) => Place::Module,
            (_, Some(_), _) => Place::Input,
            (_, None, '(' | '[') => Place::Within,
            (Place::Module, None, _) if kind == Some("mod") => {
                self.whole = self.wanted();
                Place::Module
            }
            (Place::Module, None, _) if kind.is_some_and(|it| PARTS.contains(&it)) => Place::Parts,
            // The parts of a part.
            (Place::Parts, None, _) if kind.is_none() => Place::Parts,
            _ => Place::Body,
        };
        let closes = match mark {
            '(' => ')',
            '[' => ']',
            _ => '}',
        };
        self.levels.push(Level {
            closes,
            place,
            outside,
        });
        if place != Place::Within {
            self.item = Item::default();
        }
    }

    fn close(&mut self, mark: char) {
        self.begin();
        let Some(level) = self.levels.pop() else {
            self.broken = true;
            return;
        };
        self.broken |= level.closes != mark;
        self.whole = level.outside;
        if level.place != Place::Within {
            self.item = Item::default();
        }
    }

    fn mark(&mut self, mark: char) {
        self.begin();
        self.item.call = None;
        let ends = match self.place() {
            Place::Within => false,
            // Fields and variants; the comma of `fn a<A, B>` ends nothing.
            Place::Parts => mark == ';' || (mark == ',' && self.item.kind.is_none()),
            Place::Input | Place::Definition => matches!(mark, ';' | ','),
            Place::Module | Place::Body => mark == ';',
        };
        if !ends {
            return;
        }
        if let Some(name) = self.item.name.take().filter(|_| mark == ';') {
            let mut wanted = self.wanted();
            wanted.doubt |= self.place() != Place::Module;
            self.source.modules.push(Module {
                name,
                path: self.item.path.take(),
                wanted,
            });
        }
        self.item = Item::default();
    }

    /// `#![…]`
    fn of_file(&mut self, text: &str) {
        if text.starts_with("cfg(") {
            self.whole.extend(&Wanted::of(text, self.on));
        }
        self.document(text);
    }

    /// `#[…]`
    fn of_item(&mut self, text: &str) {
        if self.item.begun {
            // Of a part of an item, or of what a macro makes.
            if !matches!(Attribute::of(text), Attribute::Other) {
                self.could_be(false);
            }
            return;
        }
        if text.starts_with("cfg(") {
            let wanted = Wanted::of(text, self.on);
            self.item.wanted.extend(&wanted);
            let above = self.source.documents.iter_mut().rev();
            for document in above.take(self.item.documents) {
                document.1.extend(&wanted);
                document.1.doubt |= wanted.only_tests;
            }
            return;
        }
        let under = text.strip_prefix("cfg_attr").map(str::trim_start);
        if let Some((_, more)) = under.and_then(condition) {
            // Under a condition it is something else.
            self.item.could_be |= more.contains("test");
            self.item.wanted.doubt |= more.trim_start().starts_with("path");
        }
        if let Some(path) = text.strip_prefix("path") {
            self.item.path = path.split('"').nth(1).map(str::to_owned);
        }
        let before = self.source.documents.len();
        self.document(text);
        self.item.documents += self.source.documents.len() - before;
        // Cargo passes over it unless it is asked for such tests; then none may have run.
        let word = text.split(['=', ' ']).next();
        self.item.wanted.doubt |= word == Some("ignore");
        match Attribute::of(text) {
            Attribute::Test => self.item.is_test = true,
            Attribute::Perhaps => self.item.could_be = true,
            Attribute::Other => {}
        }
    }

    /// `doc = include_str!("../README.md")`
    fn document(&mut self, text: &str) {
        if text.contains("doc") && text.contains("```") {
            self.could_be(true);
        }
        let Some((before, rest)) = text.split_once("include_str!") else {
            return;
        };
        if !before.contains("doc") {
            return;
        }
        let named = rest.trim_start_matches(['(', ' ']).strip_prefix('"');
        let path = named.and_then(|it| it.split('"').next()).map(str::to_owned);
        let mut wanted = self.wanted();
        wanted.doubt |= text.starts_with("cfg_attr") || wanted.only_tests;
        wanted.doubt |= !matches!(self.place(), Place::Module | Place::Parts);
        self.source.documents.push((path, wanted));
    }

    fn documentation(&mut self, inner: bool, text: &str) {
        if !inner {
            self.of_above();
        }
        let line = text.trim();
        let mark = ["```", "~~~"].into_iter().find(|it| line.starts_with(it));
        match (self.fence, mark) {
            (None, Some(mark)) => {
                self.fence = Some(mark);
                match is_rust(line.trim_start_matches(['`', '~'])) {
                    true if inner => self.inner += 1,
                    // On no item: a part of one, or what a macro is given.
                    true if self.item.begun => self.could_be(true),
                    true => self.item.examples += 1,
                    false => {}
                }
            }
            (Some(open), Some(mark)) if open == mark => self.fence = None,
            // An indented block is an example, too, if it is no part of a list.
            (None, None) if self.blank && text.starts_with("     ") => self.could_be(true),
            _ => {}
        }
        self.blank = line.is_empty();
    }

    /// The documentation of the module itself, once no more attributes of it follow.
    fn of_above(&mut self) {
        if self.inner > 0 {
            (self.fence, self.blank) = (None, true);
            let mut wanted = self.whole.clone();
            wanted.doubt |= self.place() != Place::Module;
            let count = std::mem::take(&mut self.inner);
            self.examples(count, wanted);
        }
    }

    /// Documentation is built without `cfg(test)`.
    fn examples(&mut self, count: usize, mut wanted: Wanted) {
        wanted.doubt |= wanted.only_tests;
        let test = Test {
            documentation: true,
            wanted,
        };
        let tests = std::iter::repeat_n(test, count);
        self.source.tests.extend(tests);
    }

    fn test(&mut self, wanted: Wanted) {
        self.source.tests.push(Test {
            documentation: false,
            wanted,
        });
    }

    fn could_be(&mut self, documentation: bool) {
        self.source.tests.push(Test {
            documentation,
            wanted: Wanted::doubtful(),
        });
    }

    /// Where the end of something cannot be told, nothing in the file can.
    fn doubt_all(&mut self) {
        self.could_be(false);
        let tests = self.source.tests.iter_mut().map(|it| &mut it.wanted);
        let modules = self.source.modules.iter_mut().map(|it| &mut it.wanted);
        let documents = self.source.documents.iter_mut().map(|it| &mut it.1);
        for wanted in tests.chain(modules).chain(documents) {
            wanted.doubt = true;
        }
    }

    fn wanted(&self) -> Wanted {
        let mut wanted = self.whole.clone();
        wanted.extend(&self.item.wanted);
        wanted
    }
}

/// Words that say what an item is.
const KINDS: [&str; 14] = [
    "mod", "fn", "impl", "trait", "struct", "enum", "union", "use", "type", "const", "static",
    "let", "return", "match",
];

/// Those whose parts can have documentation of their own.
const PARTS: [&str; 5] = ["impl", "trait", "struct", "enum", "union"];

/// Macros that make tests of what they are given.
const PROPERTIES: [&str; 2] = ["proptest", "quickcheck"];

/// Macros that make no tests; what they are given may have some.
const HARMLESS: [&str; 38] = [
    "bitflags",
    "cfg_if",
    "compile_error",
    "concat",
    "criterion_group",
    "criterion_main",
    "dbg",
    "debug",
    "env",
    "eprint",
    "eprintln",
    "error",
    "format",
    "format_args",
    "fuzz_target",
    "global_asm",
    "include_bytes",
    "include_str",
    "info",
    "lazy_static",
    "line",
    "macro_rules",
    "matches",
    "module_path",
    "option_env",
    "panic",
    "pin_project",
    "print",
    "println",
    "stringify",
    "thread_local",
    "todo",
    "unimplemented",
    "unreachable",
    "vec",
    "warn",
    "write",
    "writeln",
];

fn is_property(path: &str) -> bool {
    PROPERTIES.contains(&path.rsplit("::").next().unwrap_or(path))
}

/// The condition in `(condition, attributes)`, and the attributes.
fn condition(text: &str) -> Option<(&str, &str)> {
    let text = text.strip_prefix('(')?;
    let mut depth = 0_i32;
    let end = text.find(|c| {
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        c == ',' && depth == 0
    })?;
    Some((&text[..end], &text[end + 1..]))
}

/// Whether a block of documentation is run, by the words behind its mark.
pub fn is_rust(info: &str) -> bool {
    let words = info.split([',', ' ']).map(str::trim);
    let rust = ["rust", "no_run", "should_panic", "compile_fail", ""];
    words
        .into_iter()
        .all(|it| rust.contains(&it) || it.starts_with("edition"))
}

/// What an attribute makes of a function.
enum Attribute {
    Test,
    /// It could be one, or one on another machine.
    Perhaps,
    Other,
}

/// Attributes that make a test, by the last part of their path.
const TESTS: [&str; 9] = [
    "test",
    "rstest",
    "test_case",
    "test_matrix",
    "quickcheck",
    "quickcheck_async",
    "proptest",
    "gtest",
    "test_log",
];

impl Attribute {
    /// `test`, `tokio::test(…)`, `rstest`, `test_case(…)`, but not `cfg(test)`.
    fn of(text: &str) -> Attribute {
        let end = text.find(['(', '=', ' ', '{', '[']);
        let path = &text[..end.unwrap_or(text.len())];
        let name = path.rsplit("::").next().unwrap_or(path);
        if path.starts_with("cfg") {
            Attribute::Other
        } else if TESTS.contains(&name) {
            Attribute::Test
        } else if name.contains("test") || name == "parameterized" {
            Attribute::Perhaps
        } else {
            Attribute::Other
        }
    }
}
