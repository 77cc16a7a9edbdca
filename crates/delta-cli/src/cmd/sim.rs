//! `delta-ci sim`: the core and a store against seeded faults. The same seed tells the same story
//! on every machine; a seed that breaks an invariant is named with the command that tells it again.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use delta_sim::{Options, Summary, replay, run_seeds};
use indicatif::{ProgressBar, ProgressStyle};

use crate::exit::Exit;
use crate::failure::Done;
use crate::human_time;
use crate::terminal::{self, Terminal, Tone};
use crate::worker;

const EXAMPLES: &str = "\
Examples:
  delta-ci sim --seeds 2000
  delta-ci sim --seeds 1000000 --from 1
  delta-ci sim --seed 4711             one of them again, told step by step

Exit code 1 when a seed broke an invariant.";

/// Seeds that one thread takes at a time: enough to be worth it, few enough to end together.
const CHUNK: u64 = 50;

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// How many seeds to try
    #[arg(long, value_name = "N", required_unless_present = "seed")]
    seeds: Option<u64>,
    /// The first of them
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    from: u64,
    /// Tell the story of one seed again
    #[arg(long, value_name = "SEED", conflicts_with = "seeds")]
    seed: Option<u64>,
}

pub fn run(args: Args, terminal: &Terminal) -> Done {
    match (args.seed, args.seeds) {
        (Some(seed), _) => Ok(tell_again(seed, terminal)),
        (None, seeds) => {
            let seeds = seeds.unwrap_or(0);
            Ok(try_all(args.from, seeds, terminal))
        }
    }
}

fn tell_again(seed: u64, terminal: &Terminal) -> Exit {
    let outcome = replay(seed, false);
    let violation = outcome.violation.as_ref().map(ToString::to_string);
    if terminal.json {
        terminal.value(&serde_json::json!({
            "seed": seed,
            "events": outcome.events,
            "violation": violation,
            "timeline": outcome.timeline,
        }));
    } else {
        outcome.timeline.iter().for_each(|line| terminal.data(line));
        match &violation {
            Some(broken) => terminal.data(&terminal.paint_out(Tone::Bad, broken)),
            None => terminal.data(&format!(
                "seed {seed}: {}",
                terminal.paint_out(Tone::Good, "nothing was broken")
            )),
        }
    }
    exit(violation.is_some())
}

fn try_all(from: u64, seeds: u64, terminal: &Terminal) -> Exit {
    let started = Instant::now();
    let bar = status_line(seeds, terminal);
    let summary = on_all_cores(from, from.saturating_add(seeds), &bar);
    bar.finish_and_clear();
    let took = started.elapsed();
    let broken: Vec<String> = summary.failures.iter().map(ToString::to_string).collect();
    if terminal.json {
        terminal.value(&serde_json::json!({
            "from": from,
            "seeds": summary.seeds,
            "events": summary.events,
            "seconds": took.as_secs_f64(),
            "failing_seeds": summary.failures.iter().map(|it| it.seed).collect::<Vec<_>>(),
            "failures": broken,
        }));
        return exit(!broken.is_empty());
    }
    for text in &broken {
        terminal.data(&terminal.paint_out(Tone::Bad, text));
    }
    let (seeds, events) = (summary.seeds, summary.events);
    let verdict = if broken.is_empty() {
        terminal.paint_out(Tone::Good, "no invariant was broken")
    } else {
        terminal.paint_out(Tone::Bad, "an invariant was broken")
    };
    let took = human_time::short(took);
    terminal.data(&format!(
        "{seeds} seeds, {events} events in {took}: {verdict}"
    ));
    exit(!broken.is_empty())
}

/// Seeds are independent, so each core takes the next few until all are told or one failed.
fn on_all_cores(from: u64, end: u64, bar: &ProgressBar) -> Summary {
    let next = AtomicU64::new(from);
    let whole: Mutex<Summary> = Mutex::default();
    let lock = || {
        whole
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    };
    let work = || {
        loop {
            let start = next.fetch_add(CHUNK, Ordering::Relaxed);
            if start >= end {
                return;
            }
            let seeds = start..end.min(start.saturating_add(CHUNK));
            let part = run_seeds(seeds, &Options::default(), &mut |_| bar.inc(1));
            if !part.failures.is_empty() {
                next.store(end, Ordering::Relaxed);
            }
            add(&mut lock(), part);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..worker::cores() {
            scope.spawn(work);
        }
    });
    whole
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn add(whole: &mut Summary, part: Summary) {
    whole.seeds += part.seeds;
    whole.events += part.events;
    whole.failures.extend(part.failures);
    whole.failures.sort_by_key(|failure| failure.seed);
}

fn exit(broken: bool) -> Exit {
    if broken { Exit::Failed } else { Exit::Ok }
}

fn status_line(seeds: u64, terminal: &Terminal) -> ProgressBar {
    if !terminal.live() {
        return ProgressBar::hidden();
    }
    let bar = terminal::bars().add(ProgressBar::new(seeds));
    let style = "{bar:30} {pos}/{len} seeds, {per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}
