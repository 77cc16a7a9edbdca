//! `delta-ci plan`: what would run here, as a graph, with the reason for each job and each
//! omission. Executes nothing.

use std::collections::HashMap;
use std::path::PathBuf;

use delta_planner::{Included, Plan};
use serde_json::json;

use crate::clean;
use crate::exit::Exit;
use crate::failure::Done;
use crate::given;
use crate::planning::{self, Asked, Planned};
use crate::terminal::{Terminal, Tone};

const EXAMPLES: &str = "\
Examples:
  delta-ci plan                        what `delta-ci run` would run here, and why
  delta-ci plan --all                  whatever changed
  delta-ci plan --base origin/main     what changed since the merge base with it
  delta-ci plan --event push --branch main
  delta-ci plan --tag v1.2 --input level=production
  delta-ci plan --json path/to/checkout
  delta-ci plan --schema > v1.schema.json

Without .delta-ci.yaml the repository is looked at: Cargo, npm, pnpm, yarn, Python, Go, Make.
Nothing of it is executed. What changed is everything since the merge base with the main branch,
and what is not committed; what is uncertain runs.";

/// Steps of a job that are shown; the rest is counted.
const SHOWN_STEPS: usize = 6;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A folder, or a pipeline file
    #[arg(value_name = "PATH", default_value = ".")]
    path: PathBuf,
    #[command(flatten)]
    asked: Asked,
    /// The JSON Schema of the pipeline file, for editors, and nothing else
    #[arg(long)]
    schema: bool,
}

pub fn run(args: Args, terminal: &Terminal) -> Done {
    if args.schema {
        terminal.value(&delta_planner::schema());
        return Ok(Exit::Ok);
    }
    let planned = planning::plan(&args.path, &args.asked)?;
    match terminal.json {
        true => terminal.value(&as_json(&planned)),
        false => show(&planned, terminal),
    }
    Ok(Exit::Ok)
}

fn as_json(planned: &Planned) -> serde_json::Value {
    let reasons = planned
        .plan
        .jobs
        .iter()
        .map(|it| (it.job.name.clone(), json!(it.reason)));
    let omitted = planned.plan.omitted.iter();
    let left_out = planned.remarks.iter();
    json!({
        "from": match &planned.file {
            Some(file) => json!(given::shown(file)),
            None => json!("discovery"),
        },
        "changed": planned.changed,
        "run": planned.plan.to_request(),
        "reasons": reasons.collect::<serde_json::Map<_, _>>(),
        "omitted": omitted
            .map(|it| json!({"name": it.name, "reason": it.reason}))
            .collect::<Vec<_>>(),
        "left_out": left_out
            .map(|it| json!({"what": it.what, "reason": it.reason}))
            .collect::<Vec<_>>(),
    })
}

fn show(planned: &Planned, terminal: &Terminal) {
    let from = match &planned.file {
        Some(file) => format!("planned by {}", clean::text(&given::shown(file))),
        None => format!(
            "found by looking; {} would decide",
            delta_planner::FILE_NAME
        ),
    };
    terminal.say(&format!("{from}; {}", clean::text(&planned.changed)));
    for line in graph(&planned.plan, terminal) {
        terminal.data(&line);
    }
    let quiet = |text: &str| terminal.paint_out(Tone::Quiet, text);
    for omitted in &planned.plan.omitted {
        let (name, reason) = (clean::text(&omitted.name), clean::text(&omitted.reason));
        terminal.data(&format!("- {name}  {}", quiet(&reason)));
    }
    for remark in &planned.remarks {
        let (what, reason) = (clean::text(&remark.what), clean::text(&remark.reason));
        terminal.data(&quiet(&format!("? {what}  {reason}")));
    }
    if planned.plan.jobs.is_empty() {
        terminal.data("nothing to run; --all runs everything");
    }
}

/// Each job below the one it waits for longest, indented by how many must end before it.
fn graph(plan: &Plan, terminal: &Terminal) -> Vec<String> {
    let index: HashMap<&str, usize> = plan
        .jobs
        .iter()
        .enumerate()
        .map(|(at, it)| (it.job.name.as_str(), at))
        .collect();
    let depths = depths(plan, &index);
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); plan.jobs.len()];
    let mut roots = Vec::new();
    for (at, included) in plan.jobs.iter().enumerate() {
        let needs = included
            .job
            .needs
            .iter()
            .filter_map(|it| index.get(it.as_str()));
        match needs.max_by_key(|need| depths[**need]) {
            Some(need) => children[*need].push(at),
            None => roots.push(at),
        }
    }
    let mut lines = Vec::new();
    let mut open: Vec<usize> = roots.into_iter().rev().collect();
    while let Some(at) = open.pop() {
        job_lines(&plan.jobs[at], depths[at], terminal, &mut lines);
        open.extend(children[at].iter().rev());
    }
    lines
}

/// How many jobs in a row must end before each. A plan has no circles.
fn depths(plan: &Plan, index: &HashMap<&str, usize>) -> Vec<usize> {
    let mut depths: Vec<Option<usize>> = vec![None; plan.jobs.len()];
    for start in 0..plan.jobs.len() {
        let mut open = vec![start];
        while let Some(&at) = open.last() {
            let needs = plan.jobs[at].job.needs.iter();
            let needs: Vec<usize> = needs
                .filter_map(|it| index.get(it.as_str()).copied())
                .collect();
            match needs
                .iter()
                .find(|it| depths[**it].is_none() && !open.contains(it))
            {
                Some(next) => open.push(*next),
                None => {
                    let deepest = needs.iter().filter_map(|it| depths[*it]).max();
                    depths[at] = Some(deepest.map_or(0, |it| it + 1));
                    open.pop();
                }
            }
        }
    }
    depths.into_iter().map(Option::unwrap_or_default).collect()
}

fn job_lines(included: &Included, depth: usize, terminal: &Terminal, lines: &mut Vec<String>) {
    let job = &included.job;
    let indent = "   ".repeat(depth);
    let mark = if depth == 0 { "● " } else { "└─ " };
    let name = terminal.paint_out(Tone::Strong, &clean::text(&job.name));
    let needs = match job.needs.len() {
        0 | 1 => String::new(),
        _ => format!("  (needs {})", clean::text(&job.needs.join(", "))),
    };
    lines.push(format!(
        "{indent}{mark}{name}{needs}  {}",
        clean::text(&included.reason)
    ));
    let within = format!("{indent}{}", if depth == 0 { "│   " } else { "     " });
    let quiet = |text: String| terminal.paint_out(Tone::Quiet, &format!("{within}{text}"));
    for step in job.steps.iter().take(SHOWN_STEPS) {
        let first = step.spec.label();
        lines.push(quiet(format!("$ {}", clean::text(&first))));
    }
    if job.steps.len() > SHOWN_STEPS {
        lines.push(quiet(format!(
            "$ … {} more steps",
            job.steps.len() - SHOWN_STEPS
        )));
    }
    let mut about = Vec::new();
    if job.workdir != "." {
        about.push(format!("in {}", clean::text(&job.workdir)));
    }
    if !job.requires.is_empty() {
        about.push(format!(
            "requires {}",
            clean::text(&job.requires.join(", "))
        ));
    }
    if job.around.contains_key("results") {
        about.push("writes results of tests".to_owned());
    }
    match job.around.get("count_tests").and_then(|it| it.as_str()) {
        None => {}
        Some("none") => about.push("tests not counted".to_owned()),
        Some(_) => about.push("fails if no test ran".to_owned()),
    }
    if !about.is_empty() {
        lines.push(quiet(about.join("; ")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::When;

    #[test]
    fn a_job_stands_below_what_it_waits_for() {
        let text = b"jobs:\n  a: {steps: [x]}\n  d: {needs: [a, c], steps: [x]}\n  \
                     b: {steps: [y]}\n  c: {needs: [a], steps: [z]}\n";
        let pipeline = delta_planner::parse("f", text).unwrap();
        let plan = delta_planner::plan(&pipeline, &delta_planner::Facts::manual()).unwrap();
        let terminal = Terminal::new(false, When::Never);
        let lines = graph(&plan, &terminal);
        let jobs: Vec<&str> = lines
            .iter()
            .filter(|it| it.contains('●') || it.contains('└'))
            .map(|it| it.split("  it has").next().unwrap())
            .collect();
        assert_eq!(jobs, ["● a", "   └─ c", "      └─ d  (needs a, c)", "● b"]);
    }
}
