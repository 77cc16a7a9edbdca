//! Exhaustive exploration of small bounds: I1 … I16, I19, I20.

use delta_sim::model::explore::{Report, explore};
use delta_sim::model::finalise::{Finalise, Shape};
use delta_sim::model::lying_agents::Anyone;
use delta_sim::model::network::{Bounds, Network};

fn quick() -> bool {
    std::env::var_os("DELTA_QUICK").is_some()
}

fn storm() -> bool {
    std::env::var_os("DELTA_STORM").is_some()
}

#[test]
fn model_of_one_job_two_agents_and_a_bad_network() {
    // I1 … I16: 2 agents, 1 job, 2 attempts, loss budget 1, at most 2 messages in flight.
    let bounds = match () {
        () if quick() => Bounds::quick(),
        () if storm() => Bounds::storm(),
        () => Bounds::full(),
    };
    match explore(&Network::new(bounds)) {
        Ok(report) => println!("network model: {report}"),
        Err(found) => panic!("{found}"),
    }
}

#[test]
fn model_of_one_job_and_agents_that_say_anything() {
    // I1 … I16 against the most general client: every message, at any time, on any lease.
    let (leases, run_timeout) = match () {
        () if quick() => (2, 4),
        () if storm() => (4, 6),
        () => (3, 5),
    };
    match explore(&Anyone::new(leases, run_timeout)) {
        Ok(report) => println!("general client model: {report}"),
        Err(found) => panic!("{found}"),
    }
}

#[test]
fn model_of_three_jobs_and_the_end_of_their_run() {
    // I1 … I14 over every graph of three jobs, every choice of required ones, and fail fast.
    let shapes = Shape::all();
    let step = if quick() { 17 } else { 1 };
    let mut total = Report::default();
    for shape in shapes.into_iter().step_by(step) {
        match explore(&Finalise::new(shape)) {
            Ok(report) => total.add(&report),
            Err(found) => panic!("{shape:?}\n{found}"),
        }
    }
    println!("run model: {total}");
}
