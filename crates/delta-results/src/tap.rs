//! TAP 13 and 14: points, plans, directives, YAML blocks and subtests.
//!
//! A point with subtests repeats what they said, so only the innermost points are cases; a parent
//! that failed though none of its children did is one too. Vitest writes a parent before its
//! children, with a brace behind it.

use std::io::BufRead;

use crate::input::Input;
use crate::stream::Cases;
use crate::{Case, Counts, Problem, Status};

/// A line longer than this is cut: a point's description is short, and the rest is diagnostics. It
/// is more than a trace may have, so that a text with a cut line is known by its length.
const LINE: usize = 72 << 10;
/// Subtests are indented by four spaces each.
const INDENT: usize = 4;

struct Reader<'c, 's> {
    cases: &'c mut Cases<'s>,
    /// The levels of subtests, outermost first.
    levels: Vec<Level>,
    /// The last point, until it is known that no YAML block follows.
    last: Option<Point>,
    yaml: Option<String>,
    bailed: bool,
    /// It said that it is TAP, and so has a plan.
    versioned: bool,
    /// Points of a subtest that were promised and never came.
    torn: bool,
    /// There are subtests: a plan is not of the cases alone.
    nested: bool,
}

#[derive(Default)]
struct Level {
    /// What the subtest is called, where a comment said so.
    name: String,
    planned: Option<u64>,
    seen: u64,
    /// Cases of this level and below, and whether one of them failed.
    told: bool,
    unhappy: bool,
    /// The point that a brace opened it with.
    opener: Option<Point>,
}

struct Point {
    level: usize,
    case: Case,
    /// What it is called if it opens a level: a brace ends its line.
    opens: Option<String>,
    /// Subtests came right before it: they are its children.
    parent: bool,
    child_failed: bool,
}

pub fn read<R: BufRead>(input: &mut Input<R>, cases: &mut Cases) -> Result<(), Problem> {
    let mut reader = Reader {
        cases,
        levels: vec![Level::default()],
        last: None,
        yaml: None,
        bailed: false,
        versioned: false,
        torn: false,
        nested: false,
    };
    let mut line = Vec::new();
    while input.line(LINE, &mut line)? {
        let text = String::from_utf8_lossy(&line);
        reader.line(&text)?;
        if reader.bailed {
            break;
        }
    }
    reader.end()
}

impl Reader<'_, '_> {
    fn line(&mut self, text: &str) -> Result<(), Problem> {
        if self.yaml.is_some() {
            return self.yaml_line(text);
        }
        let indent = text.len() - text.trim_start_matches(' ').len();
        let body = text.trim();
        if body == "---" && self.last.is_some() && !indent.is_multiple_of(INDENT) {
            self.yaml = Some(String::new());
            return Ok(());
        }
        let level = indent / INDENT;
        if level >= self.cases.limits.depth {
            return Err(Problem::TooDeep(self.cases.limits.depth));
        }
        if let Some(name) = body.strip_prefix("# Subtest:") {
            self.open(level, name.trim())?;
            return Ok(());
        }
        if let Some(why) = body.strip_prefix("Bail out!") {
            self.settle()?;
            self.bailed = true;
            let mut case = Case::new("", "(bail out)", Status::Error);
            case.explain(Some(why.trim().to_owned()), None);
            return self.cases.put(case);
        }
        if let Some((status, rest)) = point(body) {
            return self.point(level, status, rest);
        }
        if body == "}" && self.closes(level)? {
            return Ok(());
        }
        if let Some(planned) = plan(body) {
            if !self.brace_opened(level) {
                self.settle()?;
            }
            self.at(level);
            if let Some(level) = self.levels.get_mut(level) {
                level.planned = Some(planned);
            }
            return Ok(());
        }
        self.versioned |= body.starts_with("TAP version ");
        // Comments and whatever else was printed between the points.
        if let Some(last) = &mut self.last
            && last.case.status == Status::Fail
            && let Some(said) = body.strip_prefix('#')
        {
            let trace = last.case.trace.get_or_insert_default();
            if trace.len() <= self.cases.limits.trace {
                push_line(trace, said.trim_start(), self.cases.limits.trace);
            }
        }
        Ok(())
    }

    /// A subtest begins. Its comment stands at its own level, as TAP 14 has it, or at that of its
    /// parent, as Node writes it: a level that is new is the one it names.
    fn open(&mut self, level: usize, name: &str) -> Result<(), Problem> {
        self.settle()?;
        let new = |level: &Level| level.name.is_empty() && level.seen == 0;
        let own = level > 0 && self.levels.get(level).is_none_or(new);
        let named = if own { level } else { level + 1 };
        self.levels.truncate(named);
        self.at(named);
        name.clone_into(&mut self.levels[named].name);
        Ok(())
    }

    /// The plan of a new level comes right after a point with a brace: that point is its parent.
    fn brace_opened(&mut self, level: usize) -> bool {
        let opens = |point: &Point| point.opens.is_some() && point.level + 1 == level;
        if !self.last.as_ref().is_some_and(opens) {
            return false;
        }
        self.at(level);
        if let Some(mut opener) = self.last.take() {
            opener.case.name = opener.opens.take().unwrap_or_default();
            self.levels[level].name.clone_from(&opener.case.name);
            self.levels[level].opener = Some(opener);
        }
        true
    }

    /// A brace ends the level that one has opened.
    fn closes(&mut self, level: usize) -> Result<bool, Problem> {
        let inner = self.levels.get(level + 1);
        if inner.is_none_or(|inner| inner.opener.is_none()) {
            return Ok(false);
        }
        self.settle()?;
        let below = self.below(level);
        let opener = below
            .levels
            .into_iter()
            .next()
            .and_then(|level| level.opener);
        if let Some(opener) = opener {
            self.last = Some(Point {
                parent: below.told,
                child_failed: below.unhappy,
                ..opener
            });
        }
        self.settle()?;
        Ok(true)
    }

    /// Takes the levels below this one off.
    fn below(&mut self, level: usize) -> Below {
        let levels: Vec<Level> = self.levels.drain(level + 1..).collect();
        self.torn |= levels.iter().any(Level::lacks_some);
        Below {
            told: levels.iter().any(|level| level.told),
            unhappy: levels.iter().any(|level| level.unhappy),
            levels,
        }
    }

    /// Makes the levels reach this one.
    fn at(&mut self, level: usize) {
        self.nested |= level > 0;
        while self.levels.len() <= level {
            self.levels.push(Level::default());
        }
    }

    fn point(&mut self, level: usize, status: Status, rest: &str) -> Result<(), Problem> {
        self.settle()?;
        self.at(level);
        // What is deeper belonged to this point.
        let below = self.below(level);
        // A brace that nothing has closed.
        self.torn |= below.levels.iter().any(|level| level.opener.is_some());
        self.levels[level].seen += 1;
        let number = self.levels[level].seen;
        let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        let opens = rest
            .trim_end()
            .strip_suffix(" {")
            .map(|rest| called(directive(rest).0, number));
        let (described, directive) = directive(rest);
        let name = called(described, number);
        let status = match (status, directive) {
            (_, Some(("skip", _))) => Status::Skip,
            // Expected to fail, or not written yet: nobody is to be alarmed.
            (_, Some(("todo", _))) => Status::Skip,
            (status, _) => status,
        };
        let names = self.levels[1..=level].iter();
        let suite: Vec<&str> = names.map(|name| name.name.as_str()).collect();
        let mut case = Case::new(suite.join(" > "), name, status);
        if let Some((kind, why)) = directive {
            case.explain(Some(why.trim().to_owned()), None);
            if kind == "todo" {
                case.note("todo", "true");
            }
        }
        self.last = Some(Point {
            level,
            case,
            opens,
            parent: below.told,
            child_failed: below.unhappy,
        });
        Ok(())
    }

    fn yaml_line(&mut self, text: &str) -> Result<(), Problem> {
        let body = text.trim();
        let Some(yaml) = &mut self.yaml else {
            return Ok(());
        };
        if body != "..." {
            if yaml.len() <= self.cases.limits.trace {
                push_line(yaml, text, self.cases.limits.trace);
            }
            return Ok(());
        }
        let yaml = self.yaml.take().unwrap_or_default();
        self.explain(&yaml);
        self.settle()
    }

    /// Only what every producer writes is understood: `duration_ms` and `message`.
    fn explain(&mut self, yaml: &str) {
        let Some(last) = &mut self.last else { return };
        let field = |name: &str| {
            let mut lines = yaml.lines().map(str::trim);
            let value = lines
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?
                .trim()
                .trim_matches(['\'', '"']);
            // A block: its first line says most.
            let block = value.is_empty() || value.starts_with(['|', '>']);
            let mut first = || lines.find(|line| !line.is_empty()).unwrap_or_default();
            let value = if block { first() } else { value };
            Some(value.to_owned())
        };
        let duration = field("duration_ms").and_then(|value| value.parse().ok());
        last.case.duration_ms = duration.and_then(crate::junit::millis);
        if last.case.status == Status::Fail {
            let message = field("message").or_else(|| field("error"));
            last.case.explain(message, Some(yaml.to_owned()));
        }
    }

    /// Hands over the last point.
    fn settle(&mut self) -> Result<(), Problem> {
        let Some(mut point) = self.last.take() else {
            return Ok(());
        };
        if point.case.message.is_none() {
            let trace = point.case.trace.take();
            point.case.explain(None, trace);
        }
        let unhappy = point.case.status == Status::Fail;
        let level = &mut self.levels[point.level];
        level.told = true;
        level.unhappy |= unhappy || point.child_failed;
        if point.parent && (!unhappy || point.child_failed) {
            return Ok(());
        }
        self.cases.put(point.case)
    }

    fn end(mut self) -> Result<(), Problem> {
        self.torn |= self.yaml.is_some();
        // Vitest's is the one version that opens levels so.
        let opens = self.last.as_ref().is_some_and(|it| it.opens.is_some());
        self.torn |= opens && self.versioned;
        self.settle()?;
        let (top, open) = (&self.levels[0], self.levels.len() > 1);
        if self.bailed {
            return Ok(());
        }
        if top.planned.is_none() && top.seen == 0 && !open {
            return Err(Problem::Malformed {
                at: 0,
                why: "no line of it is a test point or a plan".into(),
            });
        }
        if let Some(planned) = top.planned.filter(|_| !self.nested) {
            let seen = self.cases.seen();
            let others = seen.total() - seen.passed;
            let passed = planned.saturating_sub(others);
            self.cases.claim(Counts { passed, ..seen });
        }
        let unplanned = self.versioned && self.levels[0].planned.is_none();
        if self.torn || open || unplanned || self.levels[0].lacks_some() {
            Err(Problem::CutOff)
        } else {
            Ok(())
        }
    }
}

/// Levels that are over.
struct Below {
    levels: Vec<Level>,
    told: bool,
    unhappy: bool,
}

impl Level {
    /// Points that were promised and never came.
    fn lacks_some(&self) -> bool {
        self.planned.is_some_and(|planned| planned > self.seen)
    }
}

/// What a point is called.
fn called(described: &str, number: u64) -> String {
    let described = described.trim().trim_start_matches("- ").trim();
    if described.is_empty() || described == "-" {
        format!("test {number}")
    } else {
        unescaped(described)
    }
}

/// `ok` or `not ok`, and the rest of the line.
fn point(body: &str) -> Option<(Status, &str)> {
    let (status, rest) = match body.strip_prefix("not ok") {
        Some(rest) => (Status::Fail, rest),
        None => (Status::Pass, body.strip_prefix("ok")?),
    };
    let ends = rest.is_empty() || rest.starts_with([' ', '\t']);
    ends.then(|| (status, rest.trim_start()))
}

/// `1..N`.
fn plan(body: &str) -> Option<u64> {
    let end = body.strip_prefix("1..")?;
    end.split_whitespace().next()?.parse().ok()
}

/// What follows an unescaped `#`, if it is a directive.
fn directive(rest: &str) -> (&str, Option<(&'static str, &str)>) {
    let bytes = rest.as_bytes();
    let hash = (0..bytes.len()).find(|&at| {
        bytes[at] == b'#' && (at == 0 || bytes[at - 1] == b' ' || bytes[at - 1] == b'\t')
    });
    let Some(at) = hash else { return (rest, None) };
    let (before, after) = (&rest[..at], rest[at + 1..].trim_start());
    for name in ["skip", "todo"] {
        let word = after.get(..name.len());
        if word.is_some_and(|word| word.eq_ignore_ascii_case(name)) {
            // `SKIP`, `SKIPPED`, `skip:` and so on; the reason follows the word.
            let why = after
                .split_once(char::is_whitespace)
                .map_or("", |(_, why)| why);
            return (before, Some((name, why)));
        }
    }
    // `# time=12ms` and other remarks of the tool are no part of the name.
    if after.starts_with("time=") {
        (before, None)
    } else {
        (rest, None)
    }
}

fn unescaped(text: &str) -> String {
    text.replace("\\#", "#").replace("\\\\", "\\")
}

/// Nothing follows a line that may have been cut: its end is where the text is cut, too.
fn push_line(text: &mut String, line: &str, limit: usize) {
    text.push_str(line);
    if text.len() <= limit {
        text.push('\n');
    }
}
