//! Words into a condition, with types: what compares texts gets texts, what joins truths gets
//! truths, and a name that nobody knows is answered with the nearest one.

use delta_wire::nearest::nearest;

use super::lex::{Placed, Word, words};
use super::{Condition, Fact, Term};
use crate::facts::Event;
use crate::foreign;
use crate::glob::Glob;
use crate::trigger::{Input, InputKind};

/// Characters of one condition: several screens of it.
const MAX_CONDITION: usize = 4096;
/// Parentheses and `!` inside of each other: recursion this shallow fits any stack.
const MAX_NESTING: usize = 32;
/// Patterns of one `changed`: as many as a package has dependencies, and more.
const MAX_PATTERNS: usize = 500;

/// What a condition may speak of where it stands.
#[derive(Clone, Copy, Default)]
pub(crate) struct Scope<'a> {
    pub inputs: &'a [Input],
    /// The cell of a matrix, where there is one.
    pub matrix: Option<&'a [(String, String)]>,
    /// In a step, which may ask how those before it went.
    pub step: bool,
}

/// What is wrong with a condition, and where in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Characters from its beginning.
    pub at: usize,
    pub width: usize,
    pub reason: String,
    pub hint: Option<String>,
}

pub(crate) fn parse(text: &str, scope: Scope<'_>) -> Result<Condition, Fault> {
    let length = text.chars().count();
    if length > MAX_CONDITION {
        return Err(Fault {
            at: 0,
            width: 1,
            reason: format!("the condition has more than {MAX_CONDITION} characters"),
            hint: None,
        });
    }
    let words = words(text)?;
    let mut parser = Parser {
        words: &words,
        next: 0,
        end: length,
        nesting: 0,
        scope,
    };
    let condition = parser.any()?;
    match parser.peek() {
        None => Ok(condition),
        Some(rest) => Err(fault(
            rest,
            format!("`{}` does not belong here", shown(&rest.word)),
            Some("join conditions with `&&` or `||`".to_owned()),
        )),
    }
}

/// A value with its place, before it is known whether it must be a text or a truth.
enum Value {
    Truth(Condition),
    Text(Term, Placed),
}

struct Parser<'a> {
    words: &'a [Placed],
    next: usize,
    end: usize,
    nesting: usize,
    scope: Scope<'a>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a Placed> {
        self.words.get(self.next)
    }

    fn take(&mut self, word: &Word) -> bool {
        let taken = self.peek().is_some_and(|it| it.word == *word);
        self.next += usize::from(taken);
        taken
    }

    fn over(&self, wanted: &str) -> Fault {
        Fault {
            at: self.end.saturating_sub(1),
            width: 1,
            reason: format!("the condition ends where {wanted} is expected"),
            hint: None,
        }
    }

    fn any(&mut self) -> Result<Condition, Fault> {
        let mut parts = vec![self.all()?];
        while self.take(&Word::Or) {
            parts.push(self.all()?);
        }
        Ok(alone(parts, Condition::Any))
    }

    fn all(&mut self) -> Result<Condition, Fault> {
        let mut parts = vec![self.compared()?];
        while self.take(&Word::And) {
            parts.push(self.compared()?);
        }
        Ok(alone(parts, Condition::All))
    }

    fn compared(&mut self) -> Result<Condition, Fault> {
        let left = self.value()?;
        let Some(sign) = self.peek() else {
            return truth(left);
        };
        if !matches!(sign.word, Word::Equal | Word::Unequal | Word::Like) {
            return truth(left);
        }
        self.next += 1;
        let (left, left_place) = text(left, sign)?;
        let right = self.value()?;
        let (right, right_place) = text(right, sign)?;
        if sign.word == Word::Like {
            let Term::Text(pattern) = right else {
                let reason = "the right side of `=~` is a pattern in quotes".to_owned();
                return Err(fault(&right_place, reason, None));
            };
            let pattern = glob(&pattern, &right_place)?;
            return Ok(Condition::Like { left, pattern });
        }
        known_word(&left, &right, &right_place)?;
        known_word(&right, &left, &left_place)?;
        let equal = sign.word == Word::Equal;
        Ok(Condition::Equal { left, right, equal })
    }

    fn value(&mut self) -> Result<Value, Fault> {
        let Some(first) = self.peek() else {
            return Err(self.over("a condition"));
        };
        self.next += 1;
        match &first.word {
            Word::Not => {
                self.deeper(first)?;
                let inner = self.value()?;
                self.nesting -= 1;
                let inner = truth(inner)?;
                Ok(Value::Truth(Condition::Not(Box::new(inner))))
            }
            Word::Open => {
                self.deeper(first)?;
                let inner = self.any()?;
                self.nesting -= 1;
                self.close("`)`", first)?;
                Ok(Value::Truth(inner))
            }
            Word::Text(text) => Ok(Value::Text(Term::Text(text.clone()), first.clone())),
            Word::Name(name) if name == "changed" => self.changed(first),
            Word::Name(name) if self.peek().is_some_and(|it| it.word == Word::Open) => {
                let reason = format!("`{}` is no function", crate::diagnostic::shown(name));
                let hint = foreign::function(name, self.scope.step);
                Err(fault(first, reason, Some(hint)))
            }
            Word::Name(name) => named(name, first, self.scope),
            other => Err(fault(
                first,
                format!("`{}` stands where a condition is expected", shown(other)),
                None,
            )),
        }
    }

    fn deeper(&mut self, at: &Placed) -> Result<(), Fault> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            Err(fault(
                at,
                format!("the condition is nested deeper than {MAX_NESTING} levels"),
                None,
            ))
        } else {
            Ok(())
        }
    }

    fn close(&mut self, what: &str, open: &Placed) -> Result<(), Fault> {
        if self.take(&Word::Close) {
            return Ok(());
        }
        match self.peek() {
            None => Err(fault(open, format!("this `(` has no {what}"), None)),
            Some(other) => Err(fault(
                other,
                format!("`{}` stands where {what} is expected", shown(&other.word)),
                None,
            )),
        }
    }

    fn changed(&mut self, name: &Placed) -> Result<Value, Fault> {
        let example = || Some("write `changed(\"src/**\", \"Cargo.lock\")`".to_owned());
        let Some(open) = self.peek().filter(|it| it.word == Word::Open) else {
            return Err(fault(name, "`changed` asks about paths".into(), example()));
        };
        self.next += 1;
        let mut patterns = Vec::new();
        loop {
            let Some(placed) = self.peek() else {
                return Err(self.over("a path in quotes"));
            };
            let Word::Text(path) = &placed.word else {
                let reason = "a path of `changed` stands in quotes".to_owned();
                return Err(fault(placed, reason, example()));
            };
            self.next += 1;
            patterns.push(glob(path, placed)?);
            if patterns.len() > MAX_PATTERNS {
                let reason = format!("`changed` has more than {MAX_PATTERNS} paths");
                return Err(fault(placed, reason, None));
            }
            if !self.take(&Word::Comma) {
                break;
            }
        }
        self.close("`)`", open)?;
        Ok(Value::Truth(Condition::Changed(patterns)))
    }
}

fn named(name: &str, at: &Placed, scope: Scope<'_>) -> Result<Value, Fault> {
    let known = match name {
        "true" => Some(Value::Truth(Condition::Literal(true))),
        "false" => Some(Value::Truth(Condition::Literal(false))),
        "success" if scope.step => Some(Value::Truth(Condition::Success)),
        "failure" if scope.step => Some(Value::Truth(Condition::Failure)),
        "always" if scope.step => Some(Value::Truth(always())),
        _ => FACTS
            .iter()
            .find(|(it, _)| *it == name)
            .map(|(_, fact)| Value::Text(Term::Fact(fact.clone()), at.clone())),
    };
    if let Some(known) = known {
        return Ok(known);
    }
    if let Some(input) = name.strip_prefix("inputs.") {
        return of_input(input, at, scope);
    }
    if let Some(axis) = name.strip_prefix("matrix.") {
        return of_matrix(axis, at, scope);
    }
    let outcomes: &[&str] = if scope.step {
        &["success", "failure", "always"]
    } else {
        &[]
    };
    let facts = FACTS.iter().map(|(name, _)| *name);
    let names: Vec<&str> = facts
        .chain(["changed"])
        .chain(outcomes.iter().copied())
        .collect();
    let hint = match (
        foreign::in_condition(name),
        nearest(name, names.iter().copied()),
    ) {
        (Some(hint), _) => hint,
        (None, Some(near)) => format!("did you mean `{near}`?"),
        (None, None) => format!("known: {}, inputs.NAME, matrix.NAME", names.join(", ")),
    };
    let reason = format!("`{}` is not known here", crate::diagnostic::shown(name));
    Err(fault(at, reason, Some(hint)))
}

/// However the steps before went.
fn always() -> Condition {
    Condition::Any(vec![Condition::Success, Condition::Failure])
}

const FACTS: [(&str, Fact); 7] = [
    ("branch", Fact::Branch),
    ("tag", Fact::Tag),
    ("event", Fact::Event),
    ("ref", Fact::Ref),
    ("target", Fact::Target),
    ("source", Fact::Source),
    ("trust", Fact::Trust),
];

fn of_input(name: &str, at: &Placed, scope: Scope<'_>) -> Result<Value, Fault> {
    let input = scope.inputs.iter().find(|it| it.name == name);
    let fact = Fact::Input(name.to_owned());
    match input.map(|it| &it.kind) {
        Some(InputKind::Truth) => Ok(Value::Truth(Condition::Flag(fact))),
        Some(_) => Ok(Value::Text(Term::Fact(fact), at.clone())),
        None => {
            let near = nearest(name, scope.inputs.iter().map(|it| it.name.as_str()));
            let hint = match near {
                Some(near) => format!("did you mean `inputs.{near}`?"),
                None => "declare it: `on: {manual: {inputs: {NAME: {type: text}}}}`".to_owned(),
            };
            let name = crate::diagnostic::shown(name);
            Err(fault(at, format!("there is no input `{name}`"), Some(hint)))
        }
    }
}

fn of_matrix(axis: &str, at: &Placed, scope: Scope<'_>) -> Result<Value, Fault> {
    let cell = scope.matrix.unwrap_or_default();
    if let Some((_, value)) = cell.iter().find(|(name, _)| name == axis) {
        return Ok(Value::Text(Term::Text(value.clone()), at.clone()));
    }
    let hint = match nearest(axis, cell.iter().map(|(name, _)| name.as_str())) {
        Some(near) => format!("did you mean `matrix.{near}`?"),
        None => "give the job a `matrix` with this name".to_owned(),
    };
    let axis = crate::diagnostic::shown(axis);
    Err(fault(
        at,
        format!("there is no `matrix.{axis}` here"),
        Some(hint),
    ))
}

fn truth(value: Value) -> Result<Condition, Fault> {
    match value {
        Value::Truth(condition) => Ok(condition),
        Value::Text(_, at) => {
            let word = shown(&at.word);
            let hint = format!("compare it: `{word} == \"…\"` or `{word} =~ \"…*\"`");
            Err(fault(
                &at,
                format!("`{word}` is a text, not a truth"),
                Some(hint),
            ))
        }
    }
}

fn text(value: Value, sign: &Placed) -> Result<(Term, Placed), Fault> {
    match value {
        Value::Text(term, at) => Ok((term, at)),
        Value::Truth(_) => {
            let reason = format!(
                "`{}` compares texts, and this is a truth",
                shown(&sign.word)
            );
            let hint = "write the truth alone, or `!` in front of it".to_owned();
            Err(fault(sign, reason, Some(hint)))
        }
    }
}

/// A word that is compared with a fact of a closed list must be in it.
fn known_word(fact: &Term, word: &Term, at: &Placed) -> Result<(), Fault> {
    let (Term::Fact(fact), Term::Text(word)) = (fact, word) else {
        return Ok(());
    };
    let known: Vec<&str> = match fact {
        Fact::Event => Event::ALL.iter().map(|it| it.name()).collect(),
        Fact::Trust => vec!["trusted", "untrusted"],
        _ => return Ok(()),
    };
    if known.contains(&word.as_str()) {
        return Ok(());
    }
    let reason = format!("`{fact}` is never `{}`", crate::diagnostic::shown(word));
    let hint = crate::fields::did_you_mean(word, &known);
    Err(fault(at, reason, Some(hint)))
}

fn glob(text: &str, at: &Placed) -> Result<Glob, Fault> {
    Glob::parse(text).map_err(|why| {
        let reason = format!("the pattern `{}` {why}", crate::diagnostic::shown(text));
        fault(at, reason, None)
    })
}

fn alone(mut parts: Vec<Condition>, join: fn(Vec<Condition>) -> Condition) -> Condition {
    match parts.len() {
        1 => parts.remove(0),
        _ => join(parts),
    }
}

fn shown(word: &Word) -> String {
    crate::diagnostic::shown(&word.shown())
}

fn fault(at: &Placed, reason: String, hint: Option<String>) -> Fault {
    Fault {
        at: at.at,
        width: at.width,
        reason,
        hint,
    }
}
