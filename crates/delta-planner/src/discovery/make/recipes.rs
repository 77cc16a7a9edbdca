//! The targets of a makefile, what each needs, and the commands that making it runs. Variables are
//! looked up where they are one plain assignment; nothing else is expanded.

use std::collections::{BTreeMap, BTreeSet};

/// Lines of one makefile that are looked at; generated ones have tens of thousands.
const MAX_LINES: usize = 100_000;

/// Commands of one target, with those of what it needs.
const MAX_COMMANDS: usize = 1_000;

#[derive(Default)]
pub struct Makefile<'t> {
    targets: BTreeMap<&'t str, Target<'t>>,
    variables: BTreeMap<&'t str, &'t str>,
}

#[derive(Default)]
struct Target<'t> {
    needed: BTreeSet<&'t str>,
    recipe: Vec<&'t str>,
}

impl<'t> Makefile<'t> {
    pub fn read(text: &'t str) -> Makefile<'t> {
        let mut makefile = Makefile::default();
        let mut open: Vec<&str> = Vec::new();
        let mut lines = text.lines().take(MAX_LINES);
        while let Some(line) = lines.next() {
            if let Some(command) = line.strip_prefix('\t') {
                for name in &open {
                    makefile
                        .targets
                        .entry(name)
                        .or_default()
                        .recipe
                        .push(command);
                }
                continue;
            }
            if line.starts_with([' ', '#', '.']) || line.is_empty() {
                continue;
            }
            if makefile.assigns(line) {
                continue;
            }
            let Some((names, rest)) = line.split_once(':') else {
                continue;
            };
            let mut needed = BTreeSet::new();
            let mut part = rest;
            loop {
                // Behind a semicolon stands a recipe.
                let end = part.find([';', '#']);
                let words = part[..end.unwrap_or(part.len())].split_whitespace();
                needed.extend(words.map(|it| it.trim_matches(['\\', ':'])));
                let goes_on = end.is_none() && part.ends_with('\\');
                match goes_on.then(|| lines.next()).flatten() {
                    Some(next) => part = next,
                    None => break,
                }
            }
            open = names.split_whitespace().collect();
            for name in &open {
                makefile
                    .targets
                    .entry(name)
                    .or_default()
                    .needed
                    .extend(&needed);
            }
        }
        makefile
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
            let value = rest.trim_start_matches([':', '=']).trim();
            self.variables.entry(name).or_insert(value);
        }
        assigns
    }

    pub fn has(&self, target: &str) -> bool {
        self.targets.contains_key(target)
    }

    /// Whether making one target makes another.
    pub fn needs(&self, target: &str, other: &str) -> bool {
        target != other && self.made_for(target).contains(&other)
    }

    /// A target, and everything that it needs.
    fn made_for<'m>(&'m self, target: &'m str) -> BTreeSet<&'m str> {
        let mut seen = BTreeSet::from([target]);
        let mut open = vec![target];
        while let Some(at) = open.pop() {
            let needed = self.targets.get(at).into_iter().flat_map(|it| &it.needed);
            open.extend(needed.copied().filter(|it| seen.insert(it)));
        }
        seen
    }

    /// The commands that making a target runs, its own first, without what makes them quiet.
    pub fn commands(&self, target: &str) -> Vec<String> {
        let mut order = vec![target];
        order.extend(self.made_for(target).into_iter().filter(|it| *it != target));
        let recipes = order.iter().filter_map(|it| self.targets.get(it));
        let lines = recipes.flat_map(|it| &it.recipe).take(MAX_COMMANDS);
        lines.map(|line| self.expanded(line)).collect()
    }

    fn expanded(&self, line: &str) -> String {
        let line = line.trim_start_matches(['@', '-', '+', ' ', '\t']);
        let mut words = Vec::new();
        for word in line.split(' ') {
            let inner = word.strip_prefix("$(").and_then(|it| it.strip_suffix(')'));
            let inner = inner.or(word.strip_prefix("${").and_then(|it| it.strip_suffix('}')));
            let value = inner.and_then(|name| self.variables.get(name));
            words.push(value.copied().unwrap_or(word));
        }
        words.join(" ")
    }
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
}
