//! Tells the story of one seed, or of many: `cargo run -p delta-sim --example replay -- 42`, or
//! `-- 0 10000` for a range.

use delta_sim::{Options, replay, run_seeds};

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    match (numbers.next(), numbers.next()) {
        (Some(Ok(seed)), None) => {
            let broken = replay(seed, true).violation.is_some();
            std::process::exit(i32::from(broken));
        }
        (Some(Ok(from)), Some(Ok(to))) => {
            let options = Options {
                failures: 20,
                threads: 2,
                ..Options::default()
            };
            let start = std::time::Instant::now();
            let summary = run_seeds(from..to, &options, &mut |_| {});
            for failure in &summary.failures {
                println!("{failure}");
            }
            let rate = summary.seeds as f64 / start.elapsed().as_secs_f64();
            println!(
                "{} seeds, {} events, {rate:.0}/s",
                summary.seeds, summary.events
            );
            println!("never happened: {:?}", summary.seen.missing());
        }
        _ => eprintln!("replay SEED, or replay FROM TO"),
    }
}
