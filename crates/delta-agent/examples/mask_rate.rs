//! What masking costs: a job that prints a file, in a real shim, with and without secrets to look
//! for, in turns. Only the ratio means something on another machine.
//!
//! `cargo run --release --example mask_rate -p delta-agent -- [MEGABYTES [ROUNDS]]`

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use delta_agent::attempt::{self, Begin, Happened, StateFolder, Watcher};
use delta_agent::work::{BaseEnvironment, Identity, Work};
use delta_core::time::Millis;
use delta_shim::handed_secrets::Handed;
use delta_shim::order::Abandoned;
use delta_shim::program::{SUBCOMMAND, ShimProgram};
use delta_shim::sandbox::Confinement;
use delta_shim::step::Step;
use delta_shim::verdict::Outcome;
use delta_wire::Secret;
use delta_wire::step::StepWhen;

/// A token, a password and a key of one line: what a job that deploys has.
const SECRETS: [&str; 3] = [
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "correct horse battery staple",
    "AKIAIOSFODNN7EXAMPLE/K7MDENGbPxRfiCY",
];

struct Nobody;

impl Watcher for Nobody {
    fn happened(&mut self, _: Happened<'_>) {}
}

type Anything = Box<dyn std::error::Error>;

fn main() -> Result<(), Anything> {
    let mut words = std::env::args_os().skip(1);
    if let (Some(word), Some(folder)) = (words.next(), words.next())
        && word == SUBCOMMAND
    {
        delta_shim::main(Path::new(&folder));
        return Ok(());
    }
    let mut args = std::env::args().skip(1);
    let megabytes: u64 = args.next().map_or(Ok(400), |it| it.parse())?;
    let rounds: u32 = args.next().map_or(Ok(5), |it| it.parse())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(measure(megabytes * 1_000_000, rounds))
}

async fn measure(bytes: u64, rounds: u32) -> Result<(), Anything> {
    let place = tempfile::tempdir()?;
    for name in ["workspace", "tmp", "home"] {
        std::fs::create_dir(place.path().join(name))?;
    }
    write_log(&place.path().join("workspace/log"), bytes)?;
    let state = StateFolder::open(&place.path().join("state"))?;
    let work = work(place.path(), bytes);
    let masked = || Handed {
        env: Vec::new(),
        masked: SECRETS.map(Secret::new).into(),
    };
    let (mut plain, mut with) = (Duration::MAX, Duration::MAX);
    for round in 1..=rounds {
        let one = print(&state, &work, &Handed::default()).await?;
        let two = print(&state, &work, &masked()).await?;
        (plain, with) = (plain.min(one), with.min(two));
        println!("round {round}: plain {one:.0?}, masked {two:.0?}");
    }
    let rate = |took: Duration| bytes as f64 / 1e6 / took.as_secs_f64();
    let cost = 1.0 - plain.as_secs_f64() / with.as_secs_f64();
    println!(
        "best: plain {:.0} MB/s, masked {:.0} MB/s: masking costs {:.0} % of the throughput",
        rate(plain),
        rate(with),
        100.0 * cost
    );
    Ok(())
}

/// How long the shim takes to have all of it in its spool.
async fn print(state: &StateFolder, work: &Work, secrets: &Handed) -> Result<Duration, Anything> {
    let far = Millis(i64::MAX / 2);
    let program = ShimProgram {
        program: std::env::current_exe()?,
        arguments: vec![SUBCOMMAND.into()],
    };
    let begin = Begin {
        program: &program,
        work,
        until: far,
        must_finish_by: far,
        abandoned: Abandoned::Ends,
        note: b"",
        secrets,
    };
    let draft = attempt::prepare(state, state.number())?;
    let began = Instant::now();
    let mut attempt = draft.start(&begin, Box::new(Nobody))?;
    let finished = attempt.ended().await;
    let took = began.elapsed();
    if finished.ended.outcome != Outcome::Succeeded {
        return Err(finished.ended.summary.into());
    }
    attempt.remains().remove();
    Ok(took)
}

fn work(place: &Path, bytes: u64) -> Work {
    Work {
        identity: Identity {
            run_id: "run".into(),
            job_id: "job".into(),
            job_name: "mask_rate".into(),
            attempt: 1,
            lease_epoch: 1,
        },
        steps: vec![Step {
            script: "exec cat log".into(),
            argv: None,
            workdir: None,
            goes_on: false,
            name: None,
            timeout: None,
            report: None,
            when: StepWhen::Success,
            env: Vec::new(),
            shell: None,
            failure_allowed: false,
        }],
        env: Vec::new(),
        workspace: place.join("workspace"),
        workdir: ".".into(),
        tmp: place.join("tmp"),
        home: Some(place.join("home")),
        base: BaseEnvironment::Clean { pass: Vec::new() },
        confinement: Confinement::OPEN,
        hidden: Vec::new(),
        control_group: false,
        log_quota: 2 * bytes,
        log_dropped: 0,
        stop_grace: Duration::from_secs(1),
        leftover_grace: Duration::from_secs(1),
        silence: None,
        container: None,
    }
}

/// Lines as builds and servers print them.
fn write_log(path: &Path, bytes: u64) -> std::io::Result<()> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    let (mut written, mut n) = (0, 0u64);
    while written < bytes {
        n += 1;
        let id = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let lines = format!(
            "   Compiling crate-{} v{}.{}.{} (/builds/team/project/crates/crate-{})\n\
             test module::part::number_{n} ... ok\n\
             {:02}:{:02} INFO server::http GET /api/v1/runs/{id:x} 200 in {} ms\n",
            n % 97,
            n % 3,
            n % 17,
            n % 29,
            n % 97,
            n % 60,
            n * 7 % 60,
            n % 113
        );
        file.write_all(lines.as_bytes())?;
        written += lines.len() as u64;
    }
    file.flush()
}
