//! What a job has from elsewhere: the file's defaults, and the templates it extends.
//!
//! From the weakest to the strongest: `defaults`, then the templates in the order they are listed
//! (each with what it extends itself), then the job. A key that is given again replaces what was
//! there; only `env` is joined, name by name. A key with nothing behind it takes away what it would
//! have inherited.

use std::collections::{HashMap, HashSet};

use crate::condition::Condition;
use crate::diagnostic::{Collector, MAX_DIAGNOSTICS, shown};
use crate::fields;
use crate::graph::{self, Needs};
use crate::pipeline::PlannedJob;
use crate::read::check_name;
use crate::yaml::{Cost, Node, Place, Value};

/// Templates of one file.
pub(crate) const MAX_TEMPLATES: usize = 200;
/// Templates that one job or template lists.
const MAX_EXTENDS: usize = 16;
/// Values in all jobs together, after templates and matrices: twice a full file.
const MAX_EXPANDED: Cost = Cost {
    nodes: 2 * crate::yaml::MAX_NODES,
    text_bytes: 2 * crate::yaml::MAX_TEXT_BYTES,
};

/// Characters that all patterns of a file stand for, in every cell again: as many as a file has.
const MAX_PATTERN_CHARACTERS: usize = 1024 * 1024;

/// What one file may still be expanded by. A few lines can stand for very much.
pub(crate) struct Budget {
    spent: Cost,
    pattern_characters: usize,
    told: bool,
}

impl Budget {
    pub fn new() -> Budget {
        Budget {
            spent: Cost::default(),
            pattern_characters: 0,
            told: false,
        }
    }

    /// Whether this much more fits; said once when it does not.
    pub fn spend(&mut self, node: &Node, times: usize, out: &mut Collector<'_>) -> bool {
        let cost = node.cost();
        let more = |spent: usize, cost: usize| spent.saturating_add(cost.saturating_mul(times));
        self.spent.nodes = more(self.spent.nodes, cost.nodes);
        self.spent.text_bytes = more(self.spent.text_bytes, cost.text_bytes);
        self.fits(node.place, out)
    }

    /// Whether a text may grow by so many bytes, since a value is put into it.
    pub fn grow(&mut self, bytes: usize, place: Place, out: &mut Collector<'_>) -> bool {
        self.spent.text_bytes = self.spent.text_bytes.saturating_add(bytes);
        self.fits(place, out)
    }

    /// Whether the conditions of a job that has been read still fit.
    pub fn conditions(&mut self, job: &PlannedJob, place: Place, out: &mut Collector<'_>) -> bool {
        let steps = job.steps.iter().map(|step| &step.condition);
        let all = steps.chain([&job.condition]).flatten();
        let more: usize = all.map(Condition::weight).sum();
        self.pattern_characters = self.pattern_characters.saturating_add(more);
        self.fits(place, out)
    }

    fn fits(&mut self, place: Place, out: &mut Collector<'_>) -> bool {
        let fits = self.spent.nodes <= MAX_EXPANDED.nodes
            && self.spent.text_bytes <= MAX_EXPANDED.text_bytes
            && self.pattern_characters <= MAX_PATTERN_CHARACTERS;
        if !fits && !self.told {
            self.told = true;
            let reason = "the file becomes too large here, templates and matrices expanded";
            let rule = "use fewer cells and patterns, or move long scripts into files of their own";
            out.push(place, reason, Some(rule.into()));
        }
        fits
    }
}

/// The templates of a file with everything they extend, and its defaults.
pub(crate) struct Inheritance<'n> {
    defaults: Option<&'n Node>,
    templates: HashMap<&'n str, Node>,
    /// Templates that are in use, by a job or by another template.
    used: HashSet<String>,
}

impl<'n> Inheritance<'n> {
    pub fn read(
        defaults: Option<&'n Node>,
        templates: Option<&'n Node>,
        budget: &mut Budget,
        out: &mut Collector<'_>,
    ) -> Inheritance<'n> {
        let mut inheritance = Inheritance {
            defaults: defaults.filter(|node| !node.is_absent()),
            templates: HashMap::new(),
            used: HashSet::new(),
        };
        let Some(node) = templates else {
            return inheritance;
        };
        let pairs = fields::pairs(node, "`templates`", &["rust"], out).unwrap_or_default();
        if pairs.len() > MAX_TEMPLATES {
            let reason = format!("{} templates, at most {MAX_TEMPLATES}", pairs.len());
            out.push(node.place, reason, None);
            return inheritance;
        }
        for (name, key, _) in &pairs {
            check_name("template", name, key.place, out);
        }
        let all = pairs.iter().map(|(name, ..)| *name).collect::<Vec<_>>();
        let extended: Vec<Vec<(String, Place)>> = pairs
            .iter()
            .map(|(name, _, node)| extends(node, &format!("template `{}`", shown(name)), &all, out))
            .collect();
        for at in order(&pairs, &extended, out) {
            let (name, _, node) = pairs[at];
            let merged = inheritance.merged(None, &extended[at], node, budget, out);
            inheritance.templates.insert(name, merged);
        }
        inheritance
    }

    /// A job with everything it has from elsewhere.
    pub fn apply(
        &mut self,
        node: &Node,
        what: &str,
        budget: &mut Budget,
        out: &mut Collector<'_>,
    ) -> Node {
        let names: Vec<&str> = self.templates.keys().copied().collect();
        let extended = extends(node, what, &names, out);
        self.merged(self.defaults, &extended, node, budget, out)
    }

    /// Templates that nothing extends: they are looked at by themselves.
    pub fn unused(&self) -> impl Iterator<Item = (&str, &Node)> {
        let all = self.templates.iter();
        all.filter(|(name, _)| !self.used.contains(**name))
            .map(|(name, node)| (*name, node))
    }

    fn merged(
        &mut self,
        defaults: Option<&Node>,
        extended: &[(String, Place)],
        own: &Node,
        budget: &mut Budget,
        out: &mut Collector<'_>,
    ) -> Node {
        let mut base = Node {
            place: own.place,
            value: Value::Map(Vec::new()),
        };
        let templates = extended.iter().filter_map(|(name, _)| {
            self.used.insert(name.clone());
            self.templates.get(name.as_str())
        });
        let layers: Vec<&Node> = defaults.into_iter().chain(templates).chain([own]).collect();
        for layer in layers {
            if !budget.spend(layer, 1, out) {
                break;
            }
            base = over(base, layer);
        }
        base
    }
}

/// `layer` over `base`; what is no map is left for its reader to refuse.
fn over(base: Node, layer: &Node) -> Node {
    let (Value::Map(below), Value::Map(above)) = (base.value, &layer.value) else {
        return layer.clone();
    };
    let inherited = |key: &str| below.iter().find(|(it, _)| name(it) == Some(key));
    let mut pairs: Vec<(Node, Node)> = Vec::new();
    for (key, value) in above {
        let under = name(key).and_then(inherited);
        match under {
            // Its own `extends` has been followed.
            _ if name(key) == Some("extends") => {}
            Some(_) if value.is_absent() => {}
            Some((_, under)) if name(key) == Some("env") => {
                pairs.push((key.clone(), joined(under, value)));
            }
            _ => pairs.push((key.clone(), value.clone())),
        }
    }
    let given: HashSet<&str> = above.iter().filter_map(|(key, _)| name(key)).collect();
    let kept = below
        .into_iter()
        .filter(|(key, _)| name(key).is_none_or(|key| !given.contains(key)));
    let mut all: Vec<(Node, Node)> = kept.collect();
    all.extend(pairs);
    Node {
        place: layer.place,
        value: Value::Map(all),
    }
}

/// Variables, name by name; the inherited ones first, since a later one may refer to an earlier.
fn joined(under: &Node, above: &Node) -> Node {
    let (Value::Map(below), Value::Map(own)) = (&under.value, &above.value) else {
        return above.clone();
    };
    let given: HashSet<&str> = own.iter().filter_map(|(key, _)| name(key)).collect();
    let kept = below.iter();
    let kept = kept.filter(|(key, _)| name(key).is_none_or(|key| !given.contains(key)));
    Node {
        place: above.place,
        value: Value::Map(kept.chain(own).cloned().collect()),
    }
}

/// What a job or template extends: a name, or a list of names.
fn extends(
    node: &Node,
    what: &str,
    known: &[&str],
    out: &mut Collector<'_>,
) -> Vec<(String, Place)> {
    let Value::Map(pairs) = &node.value else {
        return Vec::new();
    };
    let Some((_, value)) = pairs.iter().find(|(key, _)| name(key) == Some("extends")) else {
        return Vec::new();
    };
    let names = fields::texts(value, "`extends`", MAX_EXTENDS, out);
    for (name, place) in &names {
        if !known.contains(&name.as_str()) && !out.counted() {
            let reason = format!("{what} extends `{}`, which is no template", shown(name));
            let hint = match delta_wire::nearest::nearest(name, known.iter().copied()) {
                Some(near) => format!("did you mean `{}`?", shown(near)),
                None => "templates stand at the top of the file: `templates: {NAME: …}`".to_owned(),
            };
            out.push(*place, reason, Some(hint));
        }
    }
    names
}

/// Templates behind those they extend; those in a circle are reported and left out.
fn order(
    pairs: &[(&str, &Node, &Node)],
    extended: &[Vec<(String, Place)>],
    out: &mut Collector<'_>,
) -> Vec<usize> {
    let graph: Vec<Needs> = pairs
        .iter()
        .zip(extended)
        .map(|((name, ..), extends)| Needs {
            name: (*name).to_owned(),
            needs: extends.clone(),
        })
        .collect();
    for cycle in graph::cycles(&graph, MAX_DIAGNOSTICS) {
        let path = crate::read::shown_path(&cycle.path);
        let reason = format!("the templates extend each other in a circle: {path}");
        out.push(cycle.place, reason, Some("remove one of these".into()));
    }
    graph::in_order(&graph)
}

fn name(key: &Node) -> Option<&str> {
    match &key.value {
        Value::Scalar { text, .. } => Some(text),
        _ => None,
    }
}
