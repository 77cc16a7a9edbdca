//! `concurrency`: the group of which one run, or one job, at a time is at work.
//!
//! Its name may speak of the trigger, as in `deploy-{branch}`. A name that speaks of something a
//! run does not have, such as the branch of a tag, makes no group for it.

use crate::diagnostic::{Collector, shown};
use crate::facts::Facts;
use crate::fields::{self, Keys};
use crate::foreign;
use crate::yaml::{Node, Value};

/// Characters of a name as it is written: more than anybody says aloud.
const MAX_WRITTEN: usize = 200;

pub(crate) const KEYS: Keys = Keys {
    known: &["group", "cancel_older"],
    not_yet: &[],
    foreign: foreign::CONCURRENCY,
    look: fields::by_name_alone,
};

/// What a name may speak of.
pub(crate) const NAMES: [&str; 6] = ["branch", "tag", "ref", "target", "source", "event"];

/// A group, by its name as the file has it, or as it is for one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Concurrency {
    pub group: String,
    /// The older ones are ended, instead of being waited for.
    pub cancel_older: bool,
}

/// A name, or a map with one.
pub(crate) fn read(node: &Node, what: &str, out: &mut Collector<'_>) -> Option<Concurrency> {
    let what = format!("`concurrency` of {what}");
    if !matches!(node.value, Value::Map(_)) {
        let group = name(node, &what, out)?;
        return Some(Concurrency {
            group,
            cancel_older: false,
        });
    }
    let map = fields::fields(node, &KEYS, &what, out)?;
    let cancel_older = map.get("cancel_older");
    let cancel_older = cancel_older.and_then(|it| fields::boolean(it, "`cancel_older`", out));
    let Some(group) = map.get("group") else {
        let rule = "write `concurrency: {group: production}`";
        out.push(
            node.place,
            format!("{what} has no `group`"),
            Some(rule.into()),
        );
        return None;
    };
    Some(Concurrency {
        group: name(group, &what, out)?,
        cancel_older: cancel_older.unwrap_or_default(),
    })
}

fn name(node: &Node, what: &str, out: &mut Collector<'_>) -> Option<String> {
    let text = fields::text(node, what, out)?;
    let plain = !text.trim().is_empty() && !text.contains(char::is_control);
    if !plain || text.chars().count() > MAX_WRITTEN {
        let reason = format!("{what} has no name");
        let rule = format!("a name is one line of 1 to {MAX_WRITTEN} characters");
        out.push(node.place, reason, Some(rule));
        return None;
    }
    let mut good = true;
    for part in parts(text) {
        if let Part::Fact(fact) = part
            && !NAMES.contains(&fact)
        {
            let reason = format!("{what} speaks of `{{{}}}`", shown(fact));
            let hint = fields::did_you_mean(fact, &NAMES);
            out.push(node.place, reason, Some(hint));
            good = false;
        }
    }
    good.then(|| text.to_owned())
}

impl Concurrency {
    /// The group as it is for a run with these facts, if it is one.
    pub(crate) fn of(&self, facts: &Facts) -> Option<Concurrency> {
        let mut group = String::new();
        for part in parts(&self.group) {
            group.push_str(match part {
                Part::Text(text) => text,
                Part::Fact("branch") => facts.branch.as_deref()?,
                Part::Fact("tag") => facts.tag.as_deref()?,
                Part::Fact("ref") => facts.git_ref.as_deref()?,
                Part::Fact("target") => facts.target.as_deref()?,
                Part::Fact("source") => facts.source.as_deref()?,
                Part::Fact("event") => facts.event.name(),
                Part::Fact(_) => return None,
            });
        }
        let cancel_older = self.cancel_older;
        Some(Concurrency {
            group,
            cancel_older,
        })
    }
}

enum Part<'t> {
    Text(&'t str),
    Fact(&'t str),
}

fn parts(text: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, (fact, behind))) = rest
        .split_once('{')
        .and_then(|(before, after)| Some((before, after.split_once('}')?)))
    {
        parts.extend([Part::Text(before), Part::Fact(fact)]);
        rest = behind;
    }
    parts.push(Part::Text(rest));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_speaks_of_what_the_run_has_or_makes_no_group() {
        let named = |group: &str, facts: &Facts| {
            let concurrency = Concurrency {
                group: group.into(),
                cancel_older: true,
            };
            concurrency.of(facts).map(|it| it.group)
        };
        let mut facts = Facts::manual();
        facts.branch = Some("main".into());
        facts.git_ref = Some("refs/heads/main".into());
        assert_eq!(
            named("deploy-{branch}/{event}", &facts).as_deref(),
            Some("deploy-main/manual")
        );
        assert_eq!(named("{ref}", &facts).as_deref(), Some("refs/heads/main"));
        assert_eq!(named("plain", &facts).as_deref(), Some("plain"));
        assert_eq!(named("release-{tag}", &facts), None);
    }
}
