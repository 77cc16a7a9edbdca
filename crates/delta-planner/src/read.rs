//! The pipeline file in its first form: bytes into a [`Pipeline`], or every fault at once.

use std::collections::HashMap;

use delta_wire::api::create_run::{MAX_JOBS, MAX_NAME};
use delta_wire::nearest::nearest;

use crate::diagnostic::{Collector, Diagnostics, MAX_DIAGNOSTICS, shown};
use crate::fields::{self, Keys};
use crate::graph::{self, Needs};
use crate::job::read_job;
use crate::pipeline::{Pipeline, PlannedJob};
use crate::yaml::{self, Node, Place};

/// A pipeline file is written by hand; the largest known ones are near 100 KiB. Anything beyond
/// this is a mistake or an attack, and is refused before it is looked at.
pub const MAX_FILE_BYTES: usize = 1024 * 1024;

const FILE_KEYS: Keys = Keys {
    known: &["jobs"],
    not_yet: &["concurrency", "env", "fail_fast", "on"],
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
    let jobs = read_file(&root, &mut out);
    if out.is_empty() {
        Ok(Pipeline::of(jobs))
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

fn read_file(root: &Node, out: &mut Collector<'_>) -> Vec<PlannedJob> {
    let example = "a file begins like this: `jobs: {build: {steps: [make]}}`";
    if root.is_absent() {
        out.push(root.place, "the file is empty", Some(example.into()));
        return Vec::new();
    }
    let Some(file) = fields::fields(root, &FILE_KEYS, "the file", out) else {
        return Vec::new();
    };
    let Some(jobs) = file.get("jobs") else {
        out.push(root.place, "the file has no `jobs`", Some(example.into()));
        return Vec::new();
    };
    let Some(pairs) = fields::pairs(jobs, "`jobs`", &["build"], out) else {
        return Vec::new();
    };
    if pairs.is_empty() {
        out.push(jobs.place, "`jobs` is empty", Some(example.into()));
    }
    if pairs.len() > MAX_JOBS {
        let reason = format!("{} jobs, at most {MAX_JOBS} are allowed", pairs.len());
        out.push(jobs.place, reason, None);
        return Vec::new();
    }
    let mut read = Vec::new();
    let mut needs = Vec::new();
    for (name, key, node) in pairs {
        check_name(name, key.place, out);
        let (job, job_needs) = read_job(key, name, node, out);
        needs.push(Needs {
            name: name.to_owned(),
            needs: job_needs,
        });
        read.push(job);
    }
    check_needs(&needs, out);
    read
}

fn check_name(name: &str, place: Place, out: &mut Collector<'_>) {
    let mut letters = name.chars();
    let first = letters
        .next()
        .is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    let rest = letters.all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
    if !first || !rest || name.chars().count() > MAX_NAME {
        let reason = format!("`{}` is not a name of a job", shown(name));
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
        let path: Vec<String> = cycle.path.iter().map(|name| shown(name)).collect();
        let reason = format!("the needs go in a circle: {}", shown_path(&path));
        out.push(
            cycle.place,
            reason,
            Some("remove one of these needs".into()),
        );
    }
}

/// A long circle is shown by its two ends.
fn shown_path(path: &[String]) -> String {
    const ENDS: usize = 8;
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
