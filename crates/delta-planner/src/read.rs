//! The pipeline file as a whole: bytes into a [`Pipeline`], or every fault at once.

use std::collections::HashMap;

use delta_wire::api::create_run::{MAX_JOBS, MAX_NAME, MAX_NEEDS};
use delta_wire::job_spec::MAX_INPUTS;
use delta_wire::nearest::nearest;
use serde_json::Value as Json;

use crate::concurrency;
use crate::condition::Scope;
use crate::diagnostic::{Collector, Diagnostics, MAX_DIAGNOSTICS, shown};
use crate::expression;
use crate::fields::{self, Keys};
use crate::foreign;
use crate::graph::{self, Needs};
use crate::job::{DEFAULTS_KEYS, TIMEOUTS, read_job};
use crate::matrix::{self, Values};
use crate::merge::{Budget, Inheritance};
use crate::on;
use crate::pipeline::{Cell, Pipeline, PlannedJob};
use crate::plan::variable;
use crate::steps::Of;
use crate::substitute;
use crate::trigger::Input;
use crate::yaml::{self, Node, Place};

/// A pipeline file is written by hand; the largest known ones are near 100 KiB. Anything beyond
/// this is a mistake or an attack, and is refused before it is looked at.
pub const MAX_FILE_BYTES: usize = 1024 * 1024;

pub(crate) const FILE_KEYS: Keys = Keys {
    known: &[
        "jobs",
        "on",
        "defaults",
        "templates",
        "fail_fast",
        "concurrency",
        "timeout",
    ],
    not_yet: &["include", "schedule"],
    foreign: foreign::FILE,
    look: foreign::of_file,
};

/// Reads one pipeline file. `file` is only a name for diagnostics.
pub fn parse(file: &str, bytes: &[u8]) -> Result<Pipeline, Diagnostics> {
    if bytes.len() > MAX_FILE_BYTES {
        let mut out = Collector::new(file, "");
        let reason = format!(
            "the file has {} bytes, at most {MAX_FILE_BYTES} are read",
            bytes.len()
        );
        out.push(
            START,
            reason,
            Some("move long scripts into files of their own".into()),
        );
        return Err(out.finish());
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text.strip_prefix('\u{feff}').unwrap_or(text),
        Err(problem) => return Err(not_text(file, bytes, problem.valid_up_to())),
    };
    let mut out = Collector::new(file, text);
    if let Some(at) = text.find('\0') {
        out.push(
            place_of(text, at),
            "the file contains a NUL character",
            None,
        );
        return Err(out.finish());
    }
    let root = match yaml::read(text) {
        Ok(root) => root,
        Err(problem) => {
            out.push(problem.place, problem.reason, problem.suggestion);
            return Err(out.finish());
        }
    };
    expression::check(&root, &mut out);
    let mut pipeline = read_file(&root, &mut out);
    if out.is_empty() {
        pipeline.warnings = out.warnings();
        Ok(pipeline)
    } else {
        Err(out.finish())
    }
}

const START: Place = Place {
    line: 1,
    column: 1,
    width: 1,
};

fn not_text(file: &str, bytes: &[u8], valid: usize) -> Diagnostics {
    let text = String::from_utf8_lossy(bytes);
    let mut out = Collector::new(file, &text);
    let reason = format!("byte 0x{:02x} is not UTF-8", bytes[valid]);
    out.push(
        place_of(&text, valid),
        reason,
        Some("save the file as UTF-8".into()),
    );
    out.finish()
}

fn place_of(text: &str, byte: usize) -> Place {
    let before = &text[..byte];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    Place {
        line: before.matches('\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
        width: 1,
    }
}

fn read_file(root: &Node, out: &mut Collector<'_>) -> Pipeline {
    let example = "a file begins like this: `jobs: {build: {steps: [make]}}`";
    let mut pipeline = Pipeline::default();
    if root.is_absent() {
        out.push(root.place, "the file is empty", Some(example.into()));
        return pipeline;
    }
    let Some(file) = fields::fields(root, &FILE_KEYS, "the file", out) else {
        return pipeline;
    };
    if let Some(node) = file.get("on") {
        pipeline.triggers = on::read(node, out);
    }
    if let Some(node) = file.get("fail_fast") {
        pipeline.fail_fast = fields::boolean(node, "`fail_fast`", out).unwrap_or_default();
    }
    if let Some(node) = file.get("concurrency").filter(|it| !it.is_absent()) {
        pipeline.concurrency = concurrency::read(node, "the file", out);
    }
    if let Some(node) = file.get("timeout") {
        pipeline.timeout = fields::duration(node, "the timeout", TIMEOUTS, out);
    }
    let mut budget = Budget::new();
    let (defaults, templates) = (file.get("defaults"), file.get("templates"));
    if let Some(node) = defaults.filter(|node| !node.is_absent()) {
        fields::fields(node, &DEFAULTS_KEYS, "`defaults`", out);
    }
    let inherited = Inheritance::read(defaults, templates, &mut budget, out);
    let Some(jobs) = file.get("jobs") else {
        if !file.is_misspelt("jobs") {
            out.push(root.place, "the file has no `jobs`", Some(example.into()));
        }
        return pipeline;
    };
    let faults = out.pushed();
    let Some(pairs) = fields::pairs(jobs, "`jobs`", &["build"], out) else {
        return pipeline;
    };
    if pairs.is_empty() && out.pushed() == faults {
        out.push(jobs.place, "`jobs` is empty", Some(example.into()));
    }
    let mut reader = Reader {
        inputs: &pipeline.triggers.inputs,
        inherited,
        budget,
        place: jobs.place,
        jobs: Vec::new(),
        graph: Vec::new(),
    };
    for (name, key, node) in pairs {
        check_name("job", name, key.place, out);
        if !reader.job(name, key, node, out) {
            return pipeline;
        }
    }
    reader.unused_templates(out);
    pipeline.jobs = reader.finish(out);
    pipeline
}

/// Reads the jobs of one file, one after the other.
struct Reader<'a> {
    inputs: &'a [Input],
    inherited: Inheritance<'a>,
    budget: Budget,
    /// Of `jobs`.
    place: Place,
    jobs: Vec<PlannedJob>,
    /// As the file names jobs and their needs.
    graph: Vec<Needs>,
}

impl Reader<'_> {
    /// Reads one job with all its cells. False when there are too many jobs to go on.
    fn job(&mut self, name: &str, key: &Node, node: &Node, out: &mut Collector<'_>) -> bool {
        let what = format!("job `{}`", shown(name));
        out.reading(&what, 0);
        let node = self.inherited.apply(node, &what, &mut self.budget, out);
        let matrix = get(&node, "matrix").filter(|node| !node.is_absent());
        let cells = match matrix {
            Some(node) => matrix::read(node, &what, out),
            None => Vec::new(),
        };
        let count = self.jobs.len() + cells.len().max(1);
        if count > MAX_JOBS {
            let reason = format!("more than {MAX_JOBS} jobs, the cells of matrices counted");
            out.push(self.place, reason, None);
            return false;
        }
        // The matrix itself is in none of its cells.
        let mut bare = node.clone();
        without_matrix(&mut bare);
        if !self.budget.spend(&bare, cells.len(), out) {
            return false;
        }
        let cells: Vec<Option<Values>> = if cells.is_empty() {
            vec![None]
        } else {
            cells.into_iter().map(Some).collect()
        };
        for (at, values) in cells.into_iter().enumerate() {
            out.reading(&what, at);
            // In a matrix that could not be read, no name is known.
            let job = if values.is_none() && matrix.is_some() {
                bare.clone()
            } else {
                substitute::cell(&bare, values.as_ref(), &mut self.budget, out)
            };
            let of = Of {
                what: &what,
                place: key.place,
                scope: Scope {
                    inputs: self.inputs,
                    matrix: values.as_deref(),
                    step: false,
                },
                partial: false,
                matrix: matrix.is_some(),
            };
            let (mut job, needs) = read_job(name, &job, of, out);
            if !self.budget.conditions(&job, key.place, out) {
                return false;
            }
            if at == 0 {
                check_inputs(&job, get(&node, "inputs"), out);
                let name = name.to_owned();
                self.graph.push(Needs { name, needs });
            }
            if let Some(values) = values {
                into_cell(&mut job, at, values);
            }
            self.jobs.push(job);
        }
        true
    }

    /// What nobody extends is looked at by itself, so that its faults do not wait.
    fn unused_templates(&mut self, out: &mut Collector<'_>) {
        for (name, node) in self.inherited.unused() {
            let what = format!("template `{}`", shown(name));
            out.reading(&what, 0);
            let of = Of {
                what: &what,
                place: node.place,
                scope: Scope {
                    inputs: self.inputs,
                    matrix: None,
                    step: false,
                },
                partial: true,
                matrix: false,
            };
            // Conditions on a matrix can be read only where there is one.
            if get(node, "matrix").is_none() {
                read_job(name, node, of, out);
            }
        }
    }

    /// The jobs, each cell a job, with needs and inputs by their names.
    fn finish(self, out: &mut Collector<'_>) -> Vec<PlannedJob> {
        out.reading("", 0);
        check_needs(&self.graph, out);
        let mut cells: HashMap<String, Vec<String>> = HashMap::new();
        for job in &self.jobs {
            if let Some(cell) = &job.cell {
                let names = cells.entry(cell.job.clone()).or_default();
                names.push(job.name.clone());
            }
        }
        let mut jobs = self.jobs;
        if cells.is_empty() {
            return jobs;
        }
        for job in &mut jobs {
            // Counted before they are written out: a few lines can stand for millions.
            let count = |name: &str| cells.get(name).map_or(1, Vec::len);
            let needs: usize = job.needs.iter().map(|need| count(need)).sum();
            let inputs: usize = job.inputs().map(count).sum();
            let too_many = [
                (needs, MAX_NEEDS, "needs", "jobs"),
                (inputs, MAX_INPUTS, "has", "inputs"),
            ];
            let too_many = too_many.into_iter().find(|(count, most, ..)| count > most);
            if let Some((count, most, has, things)) = too_many {
                let name = shown(&job.name);
                let reason =
                    format!("job `{name}` {has} {count} {things}, cells counted; at most {most}");
                let rule = "use fewer cells, or a job between them that joins them";
                out.push(self.place, reason, Some(rule.into()));
                continue;
            }
            let all = job.needs.iter().flat_map(|need| match cells.get(need) {
                Some(names) => names.clone(),
                None => vec![need.clone()],
            });
            job.needs = all.collect();
            inputs_of_cells(job, &cells);
        }
        jobs
    }
}

/// What is said about a matrix is for the reader of the file.
fn without_matrix(job: &mut Node) {
    if let yaml::Value::Map(pairs) = &mut job.value {
        pairs.retain(|(key, _)| !matches!(scalar(key), Some("matrix" | "extends")));
    }
}

fn into_cell(job: &mut PlannedJob, at: usize, values: Values) {
    let own = std::mem::take(&mut job.env);
    let named = values.iter();
    let mut env: Vec<(String, String)> = named
        .map(|(name, value)| (variable("MATRIX", name), value.clone()))
        .filter(|(name, _)| !own.iter().any(|(it, _)| it == name))
        .collect();
    env.extend(own);
    job.env = env;
    let base = std::mem::take(&mut job.name);
    job.name = matrix::cell_name(&base, at, &values);
    job.cell = Some(Cell { job: base, values });
}

/// An input from a job with a matrix is one from each of its cells.
fn inputs_of_cells(job: &mut PlannedJob, cells: &HashMap<String, Vec<String>>) {
    let Some(Json::Array(inputs)) = job.around.get_mut("inputs") else {
        return;
    };
    let all = std::mem::take(inputs).into_iter().flat_map(|input| {
        let names = input["job"].as_str().and_then(|name| cells.get(name));
        let Some(names) = names else {
            return vec![input];
        };
        let of = |name: &String| {
            let mut input = input.clone();
            input["job"] = Json::from(name.as_str());
            input
        };
        names.iter().map(of).collect()
    });
    *inputs = all.collect();
}

/// A job has inputs of those it needs, so that they are there when it begins.
fn check_inputs(job: &PlannedJob, node: Option<&Node>, out: &mut Collector<'_>) {
    let Some(node) = node else {
        return;
    };
    for (at, input) in job.inputs().enumerate() {
        if job.needs.iter().any(|need| need == input) {
            continue;
        }
        let place = match &node.value {
            yaml::Value::List(items) => items.get(at).unwrap_or(node).place,
            _ => node.place,
        };
        let reason = format!("`{}` is not in `needs`", shown(input));
        let near = nearest(input, job.needs.iter().map(String::as_str));
        let hint = match near {
            Some(near) => format!("did you mean `{}`?", shown(near)),
            None => "a job has inputs of those it needs; add it there".to_owned(),
        };
        out.push(place, reason, Some(hint));
    }
}

fn get<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    let yaml::Value::Map(pairs) = &node.value else {
        return None;
    };
    let found = pairs.iter().find(|(it, _)| scalar(it) == Some(key));
    found.map(|(_, value)| value)
}

fn scalar(node: &Node) -> Option<&str> {
    match &node.value {
        yaml::Value::Scalar { text, .. } => Some(text),
        _ => None,
    }
}

/// The name of a job or a template.
pub(crate) fn check_name(what: &str, name: &str, place: Place, out: &mut Collector<'_>) {
    let mut letters = name.chars();
    let first = letters
        .next()
        .is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    let rest = letters.all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
    if !first || !rest || name.chars().count() > MAX_NAME {
        let reason = format!("`{}` is not a name of a {what}", shown(name));
        let rule = format!(
            "use letters, digits, `_`, `-` and `.`, begin with a letter or digit, \
             at most {MAX_NAME} characters"
        );
        out.push(place, reason, Some(rule));
    }
}

fn check_needs(jobs: &[Needs], out: &mut Collector<'_>) {
    let names: HashMap<&str, ()> = jobs.iter().map(|job| (job.name.as_str(), ())).collect();
    for job in jobs {
        let mut seen = HashMap::new();
        for (need, place) in &job.needs {
            if !names.contains_key(need.as_str()) && !out.counted() {
                let reason = format!(
                    "job `{}` needs `{}`, which is not here",
                    shown(&job.name),
                    shown(need)
                );
                // Not the job itself: that would only be the next fault.
                let others = jobs.iter().map(|other| other.name.as_str());
                let near = nearest(need, others.filter(|name| *name != job.name));
                let suggestion = near.map_or_else(
                    || "name a job of this file, or remove the need".to_owned(),
                    |near| format!("did you mean `{}`?", shown(near)),
                );
                out.push(*place, reason, Some(suggestion));
            }
            if seen.insert(need.as_str(), ()).is_some() {
                let reason = format!("job `{}` needs `{}` twice", shown(&job.name), shown(need));
                out.push(*place, reason, Some("keep one of them".into()));
            }
        }
    }
    for cycle in graph::cycles(jobs, MAX_DIAGNOSTICS) {
        let reason = format!("the needs go in a circle: {}", shown_path(&cycle.path));
        out.push(
            cycle.place,
            reason,
            Some("remove one of these needs".into()),
        );
    }
}

/// A long circle is shown by its two ends.
pub(crate) fn shown_path(path: &[String]) -> String {
    const ENDS: usize = 8;
    let path: Vec<String> = path.iter().map(|name| shown(name)).collect();
    if path.len() <= 2 * ENDS {
        return path.join(" → ");
    }
    let (first, last) = (&path[..ENDS], &path[path.len() - ENDS..]);
    let left_out = path.len() - 2 * ENDS;
    format!(
        "{} → … {left_out} more … → {}",
        first.join(" → "),
        last.join(" → ")
    )
}
