//! The targets of a makefile, what each needs, and the commands that making it runs. Variables are
//! looked up where all that this file assigns to them is one value; nothing else is expanded.

use std::collections::{BTreeMap, BTreeSet};

/// Lines of one makefile that are looked at; generated ones have tens of thousands.
const MAX_LINES: usize = 100_000;

/// Commands of one target, with those of what it needs.
const MAX_COMMANDS: usize = 1_000;

/// Variables in the values of variables; beyond it nobody follows.
const MAX_DEPTH: usize = 4;

/// Bytes of a value that is looked up: longer ones are lists of files.
const MAX_VALUE: usize = 1024;

/// Bytes of one command with its variables.
const MAX_BYTES: usize = 16 * 1024;

#[derive(Default)]
pub struct Makefile<'t> {
    /// The rules of each target, by their places: one rule may have thousands of targets, which
    /// share what it needs and its recipe.
    targets: BTreeMap<&'t str, Vec<usize>>,
    rules: Vec<Rule<'t>>,
    /// Absent in the map is one that is not assigned here; none, one whose value depends.
    variables: BTreeMap<&'t str, Option<&'t str>>,
}

#[derive(Default)]
struct Rule<'t> {
    needed: BTreeSet<&'t str>,
    recipe: Vec<String>,
}

/// A command, with the lines that go on behind a backslash.
fn whole<'t>(begin: &str, lines: &mut impl Iterator<Item = &'t str>) -> String {
    let mut command = begin.to_owned();
    while command.ends_with('\\') {
        command.pop();
        command.push(' ');
        command.push_str(lines.next().unwrap_or_default().trim_start());
    }
    command
}

/// Words with which a condition begins, goes on or ends; a rule goes on behind them.
const CONDITIONS: [&str; 6] = ["ifdef", "ifndef", "ifeq", "ifneq", "else", "endif"];

/// Passes over the lines that go on behind a backslash.
fn pass_continued<'t>(begin: &'t str, lines: &mut impl Iterator<Item = &'t str>) {
    let mut line = Some(begin);
    while line.is_some_and(|it| it.ends_with('\\')) {
        line = lines.next();
    }
}

/// The first word of a line; `ifeq(` needs no space.
fn first_word(line: &str) -> &str {
    let mut words = line.split(|c: char| c.is_whitespace() || c == '(');
    words.next().unwrap_or_default()
}

impl<'t> Makefile<'t> {
    pub fn read(text: &'t str) -> Makefile<'t> {
        let mut makefile = Makefile::default();
        // The place of the rule whose recipe may follow.
        let mut open: Option<usize> = None;
        let mut lines = text.lines().take(MAX_LINES);
        while let Some(line) = lines.next() {
            if let Some(command) = line.strip_prefix('\t') {
                makefile.add(open, || whole(command, &mut lines));
                continue;
            }
            let inner = line.trim_start();
            if inner.is_empty() || inner.starts_with('#') || CONDITIONS.contains(&first_word(inner))
            {
                pass_continued(line, &mut lines);
                continue;
            }
            // Whatever else stands there ends the rule before it.
            open = None;
            if first_word(inner) == "define" {
                let end = |it: &&str| first_word(it.trim_start()) == "endef";
                lines.by_ref().find(end);
                continue;
            }
            // Inside of a condition assignments are indented.
            if makefile.assigns(inner) || line.starts_with([' ', '.']) {
                pass_continued(line, &mut lines);
                continue;
            }
            if let Some((names, rest)) = line.split_once(':') {
                open = Some(makefile.rule(names, rest, &mut lines));
            }
        }
        makefile
    }

    /// Notes a rule, with what its targets need and the recipe on its own line.
    fn rule(
        &mut self,
        names: &'t str,
        rest: &'t str,
        lines: &mut impl Iterator<Item = &'t str>,
    ) -> usize {
        let at = self.rules.len();
        let mut rule = Rule::default();
        let mut part = rest;
        let recipe = loop {
            // Behind a semicolon stands a recipe.
            let end = part.find([';', '#']);
            let words = part[..end.unwrap_or(part.len())].split_whitespace();
            rule.needed
                .extend(words.map(|it| it.trim_matches(['\\', ':'])));
            let goes_on = end.is_none() && part.ends_with('\\');
            match goes_on.then(|| lines.next()).flatten() {
                Some(next) => part = next,
                None => break end.and_then(|end| part[end..].strip_prefix(';')),
            }
        };
        for name in names.split_whitespace() {
            self.targets.entry(name).or_default().push(at);
        }
        self.rules.push(rule);
        if let Some(command) = recipe.filter(|it| !it.trim().is_empty()) {
            self.add(Some(at), || whole(command, lines));
        }
        at
    }

    /// Adds a command to the recipe of a rule; what belongs to none is read and left out.
    fn add(&mut self, open: Option<usize>, command: impl FnOnce() -> String) {
        let command = command();
        let rule = open.and_then(|at| self.rules.get_mut(at));
        if let Some(rule) = rule.filter(|it| it.recipe.len() < MAX_COMMANDS) {
            rule.recipe.push(command);
        }
    }

    /// Notes `NAME = value`, `:=`, `?=` and the like.
    fn assigns(&mut self, line: &'t str) -> bool {
        let Some(at) = line.find(['=', ':']) else {
            return false;
        };
        let rest = &line[at..];
        let assigns = rest.starts_with('=') || rest.starts_with(":=") || rest.starts_with("::=");
        if assigns {
            let name = line[..at].trim_end_matches(['?', '+', '!']).trim();
            // `export NAME = value`
            let name = name.rsplit([' ', '\t']).next().unwrap_or(name);
            let value = rest.trim_start_matches([':', '=']);
            let value = value.split(" #").next().unwrap_or(value).trim();
            let plain = !line[..at].ends_with(['+', '!']) && !value.ends_with('\\');
            let value = (plain && value.len() <= MAX_VALUE).then_some(value);
            let known = self.variables.entry(name).or_insert(value);
            // Which of several it has may depend on conditions, which nobody decides here.
            if *known != value {
                *known = None;
            }
        }
        assigns
    }

    /// Whether a variable is assigned here.
    pub fn sets(&self, name: &str) -> bool {
        self.variables.contains_key(name)
    }

    pub fn has(&self, target: &str) -> bool {
        self.targets.contains_key(target)
    }

    /// A target of this name.
    pub fn target(&self, name: &str) -> Option<&'t str> {
        self.targets.get_key_value(name).map(|(target, _)| *target)
    }

    /// What the rules of a target need and the commands of their own recipes, but for rules that
    /// were passed already.
    pub fn pass(&self, target: &str, passed: &mut BTreeSet<usize>) -> (Vec<&'t str>, Vec<String>) {
        let rules = self.rules_of(target).filter(|it| passed.insert(*it));
        let rules: Vec<&Rule<'t>> = rules.map(|it| &self.rules[it]).collect();
        let needed = rules.iter().flat_map(|it| it.needed.iter().copied());
        let recipe = rules.iter().flat_map(|it| &it.recipe).take(MAX_COMMANDS);
        (
            needed.collect(),
            recipe.map(|it| self.expanded(it)).collect(),
        )
    }

    /// The names of all targets.
    pub fn targets(&self) -> impl Iterator<Item = &'t str> {
        self.targets.keys().copied()
    }

    /// Whether making one target makes another.
    pub fn needs(&self, target: &str, other: &str) -> bool {
        target != other && self.made_for(target).contains(&other)
    }

    /// Whether making a target needs anything else.
    pub fn needs_any(&self, target: &str) -> bool {
        self.made_for(target).len() > 1
    }

    /// A target, and everything that it needs.
    pub fn made_for<'m>(&'m self, target: &'m str) -> BTreeSet<&'m str> {
        let mut seen = BTreeSet::from([target]);
        let mut passed = BTreeSet::new();
        let mut open = vec![target];
        while let Some(at) = open.pop() {
            for rule in self.rules_of(at).filter(|it| passed.insert(*it)) {
                let needed = self.rules[rule].needed.iter().copied();
                open.extend(needed.filter(|it| seen.insert(it)));
            }
        }
        seen
    }

    fn rules_of(&self, target: &str) -> impl Iterator<Item = usize> {
        self.targets.get(target).into_iter().flatten().copied()
    }

    /// The commands that making a target runs, its own first, without what makes them quiet. Those
    /// of a rule that several targets share are named once.
    pub fn commands(&self, target: &str) -> Vec<String> {
        let mut order = vec![target];
        order.extend(self.made_for(target).into_iter().filter(|it| *it != target));
        let mut passed = BTreeSet::new();
        let rules = order.iter().flat_map(|it| self.rules_of(it));
        let rules = rules.filter(|it| passed.insert(*it));
        let lines = rules.flat_map(|it| &self.rules[it].recipe);
        let lines = lines.take(MAX_COMMANDS);
        lines.map(|line| self.expanded(line)).collect()
    }

    fn expanded(&self, line: &str) -> String {
        let line = line.trim_start_matches(['@', '-', '+', ' ', '\t']);
        let mut command = String::new();
        self.expand(line, 0, &mut command);
        command
    }

    /// Writes a text with the variables that are known; the others stay as they are written.
    fn expand(&self, text: &str, depth: usize, into: &mut String) {
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            into.push_str(&rest[..at]);
            rest = &rest[at..];
            let known = variable(rest).and_then(|(name, after)| Some((self.value(name)?, after)));
            match known {
                Some((value, after)) if depth < MAX_DEPTH && into.len() < MAX_BYTES => {
                    self.expand(value, depth + 1, into);
                    rest = after;
                }
                // `$$` is a sign of the shell.
                _ => {
                    let end = if rest.starts_with("$$") { 2 } else { 1 };
                    into.push_str(&rest[..end]);
                    rest = &rest[end..];
                }
            }
        }
        into.push_str(rest);
    }

    fn value(&self, name: &str) -> Option<&'t str> {
        match self.variables.get(name) {
            Some(value) => *value,
            None => (name == "MAKE").then_some("make"),
        }
    }
}

/// The name in `$(NAME)` or `${NAME}`, and what stands behind it.
fn variable(text: &str) -> Option<(&str, &str)> {
    let inner = text.strip_prefix("$(").map(|it| (it, ')'));
    let (inner, end) = inner.or(text.strip_prefix("${").map(|it| (it, '}')))?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    // Not by a search for the end, which may stand anywhere or nowhere.
    let (name, after) = inner.split_at(inner.find(|c| !plain(c))?);
    Some((name, after.strip_prefix(end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_told_from_assignments_and_recipes() {
        let text = ".PHONY: all test\nCC := cc\nX ::= y\nA = b:c\nall: test\ntest lint: x | y\n\
                    \tcheck: no\nbuild:: z\n# check:\nOPT ?= a:b\n";
        let makefile = Makefile::read(text);
        let found: Vec<&str> = makefile.targets.keys().copied().collect();
        assert_eq!(found, ["all", "build", "lint", "test"]);
    }

    #[test]
    fn commands_are_those_of_the_target_and_of_what_it_needs() {
        let text = "GO?=go\ntest: gen\n\t@$(GO) test ./...\n\ngen:\n\t-${GO} generate\n\t$(X) y\n";
        let makefile = Makefile::read(text);
        assert_eq!(
            makefile.commands("test"),
            ["go test ./...", "go generate", "$(X) y"]
        );
        assert!(makefile.commands("nothing").is_empty());
    }

    /// A recipe ends with the next line that is no part of it.
    #[test]
    fn commands_of_another_rule_are_not_the_targets() {
        for (text, wanted) in [
            ("test:\n\t./run\n.cache/x:\n\ttox\n", &["./run"][..]),
            ("test:\n\t./run\n.PHONY: a \\\n\ttox\n", &["./run"]),
            ("test:\n\t./run\nSRC = a \\\n\ttox \\\n\tnox\n", &["./run"]),
            ("test:\n\t./run\nSRC = a\n\ttox\n", &["./run"]),
            ("test:\n\t./run\nSRC = a \\\ntest: b\n\ttox\n", &["./run"]),
            ("test:\n\t./run\ninclude x\n\ttox\n", &["./run"]),
            ("test:\n\t./run\n  SRC = a \\\n\ttox\n", &["./run"]),
            (
                "test:\n\t./run\ndefine X\n\ttox\ntest: a\n\tnox\nendef\n",
                &["./run"],
            ),
            (
                "test:\n\t./run\n# a \\\n\ttox\n\t./more\n",
                &["./run", "./more"],
            ),
            (
                "test:\nifdef X\n\ta\nelse\n\tb\nendif\n\n# c\n \n\td\n",
                &["a", "b", "d"],
            ),
            ("test:\nifeq ($(X),a:b)\n\ta\nendif\n\tb\n", &["a", "b"]),
        ] {
            assert_eq!(Makefile::read(text).commands("test"), wanted, "{text}");
        }
    }

    /// Thousands of targets of one rule do not each hold what the rule has.
    #[test]
    fn what_a_rule_has_is_held_once() {
        let names =
            |mark: &str| (0..4_000).fold(String::new(), |all, at| all + &format!("{mark}{at} "));
        let (many, needed) = (names("a"), names("b"));
        let recipe = "\t./run --with a b c\n".repeat(4_000);
        let text = format!("test: {many}\n{many}: {needed}\n{recipe}");
        let makefile = Makefile::read(&text);
        let held: usize = makefile.rules.iter().map(|it| it.recipe.len()).sum();
        let needed: usize = makefile.rules.iter().map(|it| it.needed.len()).sum();
        assert_eq!((held, needed), (MAX_COMMANDS, 8_000));
        assert_eq!(makefile.commands("test").len(), MAX_COMMANDS);
        assert_eq!(makefile.commands("a7").len(), MAX_COMMANDS);
        assert!(makefile.needs("test", "b7"));
    }

    #[test]
    fn a_recipe_may_stand_on_the_line_of_its_target() {
        let text = "lint: ; golangci-lint run\ntest: deps ; a \\\n  b\n\tc\ndeps: # ; no\n";
        let makefile = Makefile::read(text);
        assert_eq!(makefile.commands("lint"), ["golangci-lint run"]);
        let wanted = ["a    b", "c"];
        assert_eq!(makefile.commands("test").len(), 2);
        for (said, wanted) in makefile.commands("test").iter().zip(wanted) {
            let words = |it: &str| it.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(words(said), words(wanted));
        }
        assert!(makefile.needs("test", "deps"));
        assert!(makefile.commands("deps").is_empty());
    }

    #[test]
    fn variables_are_looked_up_where_they_have_one_value() {
        let text = "GO ?= go # the compiler\nexport PYTHON = python3\nPY = $(PYTHON) -m pytest\n\
                    ifdef CI\n  TOOL = a\nendif\nTOOL ?= b\nOTHER := a\nOTHER := b\n\
                    LOOP = $(LOOP)\n\
                    ADDED = go\nADDED += vet\nall:\n\t$(GO) test\n\t${PY} -x\n\t$(TOOL)\n\
                    \t$(OTHER)\n\t$(LOOP)\n\t$(ADDED)\n\t$$(id) $(shell id) $(MAKE)\n";
        let makefile = Makefile::read(text);
        let said = makefile.commands("all");
        let wanted = [
            "go test",
            "python3 -m pytest -x",
            "$(TOOL)",
            "$(OTHER)",
            "$(LOOP)",
            "$(ADDED)",
            "$$(id) $(shell id) make",
        ];
        assert_eq!(said, wanted);
    }
}
