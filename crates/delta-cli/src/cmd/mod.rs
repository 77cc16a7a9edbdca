//! One file per command: its arguments, its help, and what it does.

pub mod agent;
pub mod agents;
pub mod approve;
pub mod artifacts;
pub mod bench;
pub mod ca;
pub mod caches;
pub mod cancel;
pub mod dead_letters;
pub mod doctor;
pub mod enqueue;
pub mod events;
pub mod help;
pub mod init;
pub mod logs;
pub mod plan;
pub mod plan_of_run;
pub mod queues;
pub mod repo;
pub mod rerun;
pub mod run;
pub mod runs;
pub mod secret;
pub mod server;
pub mod show;
pub mod sim;
pub mod test_results;
pub mod token;
pub mod trigger;
pub mod up;
pub mod why;

use crate::args::Command;
use crate::failure::Done;
use crate::terminal::Terminal;

pub async fn run(command: Command, terminal: &Terminal) -> Done {
    match command {
        Command::Run(args) => run::run(*args, terminal).await,
        Command::Plan(args) => plan::run(args, terminal),
        Command::Init(args) => init::run(args, terminal),
        Command::Up(args) => up::run(*args, terminal).await,
        Command::Server(args) => server::run(*args, terminal).await,
        Command::Agent(args) => agent::run(args, terminal).await,
        Command::Agents(args) => agents::run(args, terminal).await,
        Command::Drain(args) => agents::drain(args, terminal).await,
        Command::Undrain(args) => agents::undrain(args, terminal).await,
        Command::Runs(args) => runs::run(args, terminal).await,
        Command::Show(args) => show::run(args, terminal).await,
        Command::Tests(args) => test_results::run(args, terminal).await,
        Command::Logs(args) => logs::run(args, terminal).await,
        Command::Artifacts(args) => artifacts::run(args, terminal).await,
        Command::Caches(args) => caches::run(args, terminal).await,
        Command::Cancel(args) => cancel::run(args, terminal).await,
        Command::Approve(args) => approve::run(args, terminal).await,
        Command::Repo(args) => repo::run(args, terminal).await,
        Command::Trigger(args) => trigger::run(args, terminal).await,
        Command::Enqueue(args) => enqueue::run(*args, terminal).await,
        Command::Queues(args) => queues::run(args, terminal).await,
        Command::Pause(args) => queues::pause(args, terminal).await,
        Command::Resume(args) => queues::resume(args, terminal).await,
        Command::DeadLetters(args) => dead_letters::run(args, terminal).await,
        Command::Requeue(args) => dead_letters::requeue(*args, terminal).await,
        Command::Rerun(args) => rerun::run(args, terminal).await,
        Command::Why(args) => why::run(args, terminal).await,
        Command::Events(args) => events::run(args, terminal).await,
        Command::Doctor(args) => doctor::run(args, terminal).await,
        Command::Secret(args) => secret::run(*args, terminal).await,
        Command::Token(args) => token::run(*args, terminal).await,
        Command::Ca(args) => ca::run(args, terminal),
        Command::Bench(args) => bench::run(args, terminal).await,
        Command::Sim(args) => sim::run(args, terminal),
        Command::Help(args) => help::run(args, terminal),
    }
}
