//! `delta-ci agents`: list, show, drain, undrain and revoke; `delta-ci drain` and `undrain` are the
//! same commands by their short names.

use std::time::Duration;

use clap::Subcommand;
use delta_wire::api::{AgentList, AgentStatus, AgentView, RunnerPoolView};

use crate::client::{self, Client, Target};
use crate::exit::Exit;
use crate::failure::{Done, Failure};
use crate::table::{self, Cell};
use crate::terminal::{Terminal, Tone};
use crate::{columns, human_time, sanitize, state_words, timings};

const LIST_EXAMPLES: &str = "\
Examples:
  delta-ci agents                      the same as agents list
  delta-ci agents list --all           with those that were revoked
  delta-ci agents list --json | jq -r '.agents[].agent_id'";

const SHOW_EXAMPLES: &str = "\
Examples:
  delta-ci agents show builder-1
  delta-ci agents show agt_1f3a5b7c9d0e2f4a --json";

const DRAIN_EXAMPLES: &str = "\
Examples:
  delta-ci drain builder-1             no new work; what it has, it finishes
  delta-ci drain builder-1 --wait      return when nothing of it runs any more
  delta-ci drain builder-1 --wait --timeout 1h && ssh builder-1 reboot";

const UNDRAIN_EXAMPLES: &str = "\
Examples:
  delta-ci undrain builder-1";

const REVOKE_EXAMPLES: &str = "\
Examples:
  delta-ci agents revoke agt_1f3a5b7c9d0e2f4a
  delta-ci token revoke tok_1f3a       the credential, where several agents share it";

/// Between two looks at an agent that drains.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Agents of one page of the server.
const PAGE: u32 = 200;
/// Agents shown where a name fits several.
const MAX_NAMED: usize = 5;

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, after_help = LIST_EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    list: List,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List agents
    #[command(after_help = LIST_EXAMPLES)]
    List(List),
    /// Show an agent, and what it works on
    #[command(after_help = SHOW_EXAMPLES)]
    Show(One),
    /// Give an agent no more work
    Drain(Drain),
    /// Give an agent work again
    Undrain(Undrain),
    /// Shut an agent out for good
    #[command(after_help = REVOKE_EXAMPLES)]
    Revoke(One),
}

#[derive(Debug, clap::Args)]
struct List {
    /// With those that were revoked
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, clap::Args)]
struct One {
    /// An agent: its id, or its name where only one has it
    agent: String,
    #[command(flatten)]
    target: Target,
}

/// `delta-ci undrain`.
#[derive(Debug, clap::Args)]
#[command(after_help = UNDRAIN_EXAMPLES)]
pub struct Undrain {
    #[command(flatten)]
    one: One,
}

/// `delta-ci drain`.
#[derive(Debug, clap::Args)]
#[command(after_help = DRAIN_EXAMPLES)]
pub struct Drain {
    #[command(flatten)]
    one: One,
    /// Return when nothing of it runs any more
    #[arg(long)]
    wait: bool,
    /// How long to wait at most [default: for ever; a job's own timeout ends it]
    #[arg(long, value_name = "TIME", value_parser = timings::span, requires = "wait")]
    timeout: Option<delta_core::Span>,
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    match args.action.unwrap_or(Action::List(args.list)) {
        Action::List(args) => {
            client::reading(&args.target, async |client| {
                list(client, args.all, terminal).await
            })
            .await
        }
        Action::Show(args) => {
            client::reading(&args.target, async |client| {
                let id = find(client, &args.agent).await?;
                show(&client.get_text(&path(&id, "")).await?, terminal)
            })
            .await
        }
        Action::Drain(args) => drain(args, terminal).await,
        Action::Undrain(args) => undrain(args, terminal).await,
        Action::Revoke(args) => revoke(args, terminal).await,
    }
}

pub async fn drain(args: Drain, terminal: &Terminal) -> Done {
    client::with(&args.one.target, async |client| {
        let id = find(client, &args.one.agent).await?;
        let text = client.post_text(&path(&id, "/drain"), &EMPTY).await?;
        let agent: AgentView = client::read(&text)?;
        let name = sanitize::text(&agent.name);
        if !args.wait {
            if terminal.json {
                terminal.value(&client::read::<serde_json::Value>(&text)?);
            } else {
                terminal.say(&format!("{name} {}", standing(&agent)));
            }
            return Ok(Exit::Ok);
        }
        let patience = args
            .timeout
            .map(|span| Duration::from_millis(span.0.unsigned_abs()));
        let drained = wait(client, agent, terminal);
        let agent = match patience {
            None => drained.await?,
            Some(patience) => tokio::time::timeout(patience, drained)
                .await
                .unwrap_or_else(|_| Err(too_long(&name)))?,
        };
        if terminal.json {
            terminal.value(&agent);
        } else {
            terminal.say(&format!("{name} {}", standing(&agent)));
        }
        Ok(Exit::Ok)
    })
    .await
}

fn too_long(name: &str) -> Failure {
    let next = format!("it goes on draining: delta-ci agents show {name} tells what is left");
    Failure::new(Exit::Refused, format!("{name} is not drained in time")).next(next)
}

/// Looks until the agent is drained; says so whenever something has changed.
async fn wait(
    client: &Client,
    mut agent: AgentView,
    terminal: &Terminal,
) -> Result<AgentView, Failure> {
    let mut said = String::new();
    while !agent.is_drained() {
        if agent.drain.is_none() {
            let what = format!("{} is no longer draining", agent.name);
            return Err(Failure::new(Exit::Refused, what)
                .because("somebody undrained it")
                .next(format!(
                    "delta-ci agents drain {} begins anew",
                    agent.agent_id
                )));
        }
        let now = format!("{} {}", sanitize::text(&agent.name), standing(&agent));
        if now != said {
            terminal.say(&now);
            said = now;
        }
        tokio::time::sleep(LOOK_EVERY).await;
        agent = client.get(&path(&agent.agent_id, "")).await?;
    }
    Ok(agent)
}

pub async fn undrain(args: Undrain, terminal: &Terminal) -> Done {
    client::with(&args.one.target, async |client| {
        let id = find(client, &args.one.agent).await?;
        let text = client.post_text(&path(&id, "/undrain"), &EMPTY).await?;
        let agent: AgentView = client::read(&text)?;
        if terminal.json {
            terminal.value(&client::read::<serde_json::Value>(&text)?);
        } else {
            terminal.say(&format!("{} takes work again", sanitize::text(&agent.name)));
        }
        Ok(Exit::Ok)
    })
    .await
}

async fn revoke(args: One, terminal: &Terminal) -> Done {
    client::with(&args.target, async |client| {
        let id = find(client, &args.agent).await?;
        client.delete(&path(&id, "")).await?;
        if terminal.json {
            terminal.value(&serde_json::json!({ "agent_id": id, "revoked": true }));
        } else {
            terminal.say(&format!("{} is shut out", sanitize::text(&id)));
        }
        Ok(Exit::Ok)
    })
    .await
}

/// A body that says nothing.
const EMPTY: serde_json::Value = serde_json::Value::Null;

fn path(id: &str, order: &str) -> String {
    format!("/api/v1/agents/{id}{order}")
}

async fn all(client: &Client) -> Result<Vec<AgentView>, Failure> {
    let mut agents = Vec::new();
    let mut path = format!("/api/v1/agents?limit={PAGE}");
    loop {
        let page: AgentList = client.get(&path).await?;
        agents.extend(page.agents);
        match page.next_cursor {
            Some(cursor) => path = format!("/api/v1/agents?limit={PAGE}&cursor={cursor}"),
            None => return Ok(agents),
        }
    }
}

/// From what a person types to an id.
async fn find(client: &Client, typed: &str) -> Result<String, Failure> {
    choose(typed, &all(client).await?)
}

/// The agent of this id, or the only one of this name. Who was revoked gives way to who was not.
fn choose(typed: &str, agents: &[AgentView]) -> Result<String, Failure> {
    if agents.iter().any(|agent| agent.agent_id == typed) {
        return Ok(typed.to_owned());
    }
    let mut named: Vec<&AgentView> = agents.iter().filter(|it| it.name == typed).collect();
    if named.iter().any(|agent| agent.revoked_at.is_none()) {
        named.retain(|agent| agent.revoked_at.is_none());
    }
    match named.as_slice() {
        [agent] => Ok(agent.agent_id.clone()),
        [] => Err(
            Failure::new(Exit::NotFound, format!("there is no agent `{typed}`"))
                .next("delta-ci agents list shows what there is"),
        ),
        several => {
            let ids = several
                .iter()
                .take(MAX_NAMED)
                .map(|it| it.agent_id.as_str());
            let ids: Vec<&str> = ids.collect();
            let what = format!("{} agents are named `{typed}`", several.len());
            Err(Failure::new(Exit::Usage, what)
                .because(ids.join("\n"))
                .next("say which one by its id"))
        }
    }
}

async fn list(client: &Client, revoked_too: bool, terminal: &Terminal) -> Done {
    let mut agents = all(client).await?;
    agents.retain(|agent| revoked_too || agent.revoked_at.is_none());
    if terminal.json {
        terminal.value(&serde_json::json!({ "agents": agents }));
        return Ok(Exit::Ok);
    }
    if agents.is_empty() {
        terminal.say("no agents");
        return Ok(Exit::Ok);
    }
    let now = human_time::now();
    let rows: Vec<Vec<Cell>> = agents.iter().map(|agent| row(agent, now)).collect();
    table::show(terminal, &columns::AGENTS, &rows);
    Ok(Exit::Ok)
}

fn row(agent: &AgentView, now: delta_wire::Millis) -> Vec<Cell> {
    vec![
        Cell::from(sanitize::text(&agent.agent_id)),
        Cell::from(sanitize::text(&agent.name)),
        Cell::toned(agent.status.as_str(), tone(agent.status)),
        Cell::from(format!("{}/{}", agent.live_leases, agent.slots)),
        Cell::from(sanitize::text(&agent.pool)),
        Cell::from(human_time::relative(agent.seen_at, now)),
        Cell::from(sanitize::text(&offers(agent).join(" "))),
    ]
}

fn tone(status: AgentStatus) -> Tone {
    match status {
        AgentStatus::Idle => Tone::Good,
        AgentStatus::Busy => Tone::Busy,
        AgentStatus::Draining | AgentStatus::Offline => Tone::Warn,
        AgentStatus::Quarantined => Tone::Bad,
        AgentStatus::Revoked => Tone::Quiet,
    }
}

/// What jobs may ask of it, as they would ask.
fn offers(agent: &AgentView) -> Vec<String> {
    let mut offers: Vec<String> = [&agent.os, &agent.arch]
        .into_iter()
        .filter(|word| !word.is_empty())
        .cloned()
        .collect();
    offers.extend(agent.zones.iter().map(|zone| format!("zone={zone}")));
    offers.extend(agent.labels.iter().chain(&agent.runtimes).cloned());
    if agent.docker {
        offers.push("docker".into());
    }
    offers
}

/// How a drain goes, in words.
fn standing(agent: &AgentView) -> String {
    let Some(drain) = &agent.drain else {
        return "takes work".into();
    };
    let when = |at| human_time::relative(at, human_time::now());
    match (drain.leases_left, drain.drained_at) {
        (0, Some(at)) => format!("is drained ({})", when(at)),
        (0, None) if agent.is_drained() => "is drained: it is not there".into(),
        (0, None) => "holds no lease; it has not said that it is done".into(),
        (left, _) => format!("is draining: {} left", state_words::count(left, "lease")),
    }
}

fn show(text: &str, terminal: &Terminal) -> Done {
    if terminal.json {
        terminal.value(&client::read::<serde_json::Value>(text)?);
        return Ok(Exit::Ok);
    }
    let agent: AgentView = client::read(text)?;
    let now = human_time::now();
    let status = terminal.paint_out(tone(agent.status), agent.status.as_str());
    let (name, id) = (sanitize::text(&agent.name), sanitize::text(&agent.agent_id));
    terminal.sentence(&format!("{name} ({id}) is {status}"));
    if agent.drain.is_some() {
        terminal.sentence(&format!("  it {}", standing(&agent)));
    }
    let resources = &agent.resources;
    let facts = [
        ("pool", agent.pool.clone()),
        ("offers", offers(&agent).join(" ")),
        ("work", agent.work.join(" ")),
        (
            "resources",
            format!(
                "{} cores, {} MiB memory, {} MiB disk",
                resources.cpu_cores, resources.memory_mb, resources.disk_mb
            ),
        ),
        ("sandbox", agent.enforced.join(" ")),
        ("version", agent.version.clone()),
        ("seen", human_time::relative(agent.seen_at, now)),
        (
            "session",
            agent.session_since.map_or_else(String::new, |since| {
                let since = human_time::relative(since, now);
                format!("{}, began {since}", agent.session_epoch)
            }),
        ),
        ("registered", human_time::relative(agent.created_at, now)),
        (
            "slots",
            format!("{} of {} taken", agent.live_leases, agent.slots),
        ),
    ];
    for (what, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
        terminal.sentence(&format!("  {what:<11}{}", sanitize::text(value)));
    }
    for pool in agent.runners.iter().flatten() {
        terminal.sentence(&format!("  runner {}", runner_pool(pool)));
        if let Some(why) = &pool.last_error {
            terminal.sentence(&format!("    last not there: {}", sanitize::text(why)));
        }
    }
    for lease in agent.leases.iter().flatten() {
        let job = sanitize::text(&lease.job_id);
        let taken = if lease.accepted {
            ""
        } else {
            ", not accepted yet"
        };
        terminal.sentence(&format!(
            "  slot {}: {job} attempt {}{taken}",
            lease.slot, lease.attempt
        ));
    }
    Ok(Exit::Ok)
}

/// How a pool is, in one line.
fn runner_pool(pool: &RunnerPoolView) -> String {
    let waiting = match pool.waiting {
        0 => String::new(),
        waiting => format!(", {waiting} waiting"),
    };
    let restarts = match pool.restarts {
        0 => String::new(),
        restarts => format!(", started again {}", state_words::count(restarts, "time")),
    };
    format!(
        "{}: {} of {} up, {} of {} in flight{waiting}{restarts}",
        sanitize::text(&pool.name),
        pool.up,
        pool.wanted,
        pool.in_flight,
        state_words::count(pool.room, "call"),
    )
}

#[cfg(test)]
mod tests {
    use delta_wire::Millis;
    use delta_wire::api::DrainView;

    use super::*;

    fn agent(id: &str, name: &str) -> AgentView {
        let view = serde_json::json!({
            "agent_id": id, "name": name, "status": "IDLE", "pool": "default", "zones": ["eu"],
            "labels": [], "os": "linux", "arch": "", "runtimes": [], "work": [], "docker": true,
            "resources": { "cpu_cores": 1, "memory_mb": 1, "disk_mb": 1 }, "slots": 1,
            "live_leases": 0, "version": "1", "enforced": [], "session_epoch": 1,
            "seen_at": "2026-01-01T00:00:00Z", "created_at": "2026-01-01T00:00:00Z",
        });
        serde_json::from_value(view).unwrap()
    }

    #[test]
    fn an_agent_is_found_by_its_id_or_by_a_name_of_its_own() {
        let mut agents = vec![
            agent("agt_1", "a"),
            agent("agt_2", "b"),
            agent("agt_3", "b"),
        ];
        assert_eq!(choose("agt_2", &agents).unwrap(), "agt_2");
        assert_eq!(choose("a", &agents).unwrap(), "agt_1");
        assert_eq!(choose("c", &agents).unwrap_err().exit, Exit::NotFound);
        let several = choose("b", &agents).unwrap_err();
        assert_eq!(several.exit, Exit::Usage);
        assert!(several.why.unwrap().contains("agt_3"));
        agents[1].revoked_at = Some(Millis(1));
        assert_eq!(choose("b", &agents).unwrap(), "agt_3");
    }

    #[test]
    fn a_drain_is_over_when_the_agent_says_so_or_is_gone() {
        // A50
        let mut agent = agent("agt_1", "a");
        assert_eq!(standing(&agent), "takes work");
        let drain = |leases_left, drained_at| DrainView {
            drain_id: "d".into(),
            leases_left,
            drained_at,
        };
        agent.drain = Some(drain(2, None));
        assert_eq!(standing(&agent), "is draining: 2 leases left");
        agent.drain = Some(drain(0, None));
        assert!(!agent.is_drained(), "{}", standing(&agent));
        agent.status = AgentStatus::Offline;
        assert!(agent.is_drained() && standing(&agent).contains("not there"));
        agent.status = AgentStatus::Draining;
        agent.drain = Some(drain(0, Some(Millis(1))));
        assert!(agent.is_drained() && standing(&agent).starts_with("is drained"));
    }

    #[test]
    fn offers_are_spelled_as_jobs_ask_for_them() {
        assert_eq!(offers(&agent("agt_1", "a")), ["linux", "zone=eu", "docker"]);
    }
}
