//! Agents: shown to people; drained, undrained and revoked by administrators.
//!
//! An order is on disk before it is answered. A session of this server hears of it at once, one of
//! another server when it next looks at its row.

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use delta_core::{Millis, Text};
use delta_store::agents::AgentRow;
use delta_wire::api::{
    AgentLease, AgentList, AgentResources, AgentStatus, AgentView, DrainView, ListAgents,
    RunnerPoolView,
};
use delta_wire::{ErrorBody, ErrorCode};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{Admin, Path, User};
use super::views::at;
use crate::app::App;
use crate::audit;
use crate::sessions::{AgentRecord, OFFLINE_AFTER, RunnerPool, SessionOrder, StoredLease, held};
use crate::writer::random;

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_agents))
        .routes(routes!(show_agent, revoke_agent))
        .routes(routes!(drain_agent))
        .routes(routes!(undrain_agent))
}

/// Every agent that has registered at some time, in the order of their ids.
#[utoipa::path(get, path = "/api/v1/agents", tag = "agents", params(ListAgents),
    responses((status = 200, body = AgentList), (status = 422, body = ErrorBody)))]
async fn list_agents(
    State(app): State<App>,
    _who: User,
    RawQuery(query): RawQuery,
) -> Result<axum::Json<AgentList>, ApiError> {
    let pairs = super::query_pairs(query.as_deref())?;
    let pairs = pairs.iter().map(|(name, value)| (&**name, &**value));
    let list = ListAgents::parse(pairs)?;
    let limit = list.limit as usize;
    let after = list.cursor.unwrap_or_default();
    // One more than asked for tells whether there is a next page.
    let rows = app.read(move |reader| reader.agents(&after, limit + 1));
    let mut rows = rows.await?;
    let more = rows.len() > limit;
    rows.truncate(limit);
    let last = rows.last().map(|row| row.id.to_string());
    Ok(axum::Json(AgentList {
        agents: rows.into_iter().map(|row| view(&app, row, None)).collect(),
        next_cursor: last.filter(|_| more),
    }))
}

/// An agent, with what it works on.
#[utoipa::path(get, path = "/api/v1/agents/{id}", tag = "agents",
    params(("id" = String, Path)),
    responses((status = 200, body = AgentView), (status = 404, body = ErrorBody)))]
async fn show_agent(
    State(app): State<App>,
    _who: User,
    Path(id): Path<String>,
) -> Result<axum::Json<AgentView>, ApiError> {
    let row = find(&app, &id).await?;
    whole(&app, row).await.map(axum::Json)
}

/// Give an agent no more work. What it has, it finishes.
#[utoipa::path(post, path = "/api/v1/agents/{id}/drain", tag = "agents",
    params(("id" = String, Path)),
    responses((status = 200, description = "the agent as it is now", body = AgentView),
        (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn drain_agent(
    State(app): State<App>,
    Admin(who): Admin,
    Path(id): Path<String>,
) -> Result<axum::Json<AgentView>, ApiError> {
    let row = not_revoked(find(&app, &id).await?)?;
    // Asking twice asks once: the agent answers one drain.
    let drain: Text = match row.drain {
        Some(drain) => drain,
        None => {
            let fresh: Text = format!("drain_{:016x}", u64::from_be_bytes(random())).into();
            store_drain(&app, &row.id, Some(fresh.clone())).await?;
            audit::done("agent.drain", &who, &id);
            fresh
        }
    };
    app.agents.order(&row.id, SessionOrder::Drain(drain));
    let row = find(&app, &id).await?;
    whole(&app, row).await.map(axum::Json)
}

/// Give an agent work again.
#[utoipa::path(post, path = "/api/v1/agents/{id}/undrain", tag = "agents",
    params(("id" = String, Path)),
    responses((status = 200, description = "the agent as it is now", body = AgentView),
        (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn undrain_agent(
    State(app): State<App>,
    Admin(who): Admin,
    Path(id): Path<String>,
) -> Result<axum::Json<AgentView>, ApiError> {
    let row = not_revoked(find(&app, &id).await?)?;
    if let Some(drain) = row.drain {
        store_drain(&app, &row.id, None).await?;
        audit::done("agent.undrain", &who, &id);
        app.agents.order(&row.id, SessionOrder::Undrain(drain));
    }
    let row = find(&app, &id).await?;
    whole(&app, row).await.map(axum::Json)
}

/// Shut an agent out for good: its session ends, its id is never accepted again. Leases it holds
/// end by their own time.
#[utoipa::path(delete, path = "/api/v1/agents/{id}", tag = "agents",
    params(("id" = String, Path)),
    responses((status = 204), (status = 404, body = ErrorBody)))]
async fn revoke_agent(
    State(app): State<App>,
    Admin(who): Admin,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let (agent, now): (Text, Millis) = (id.as_str().into(), app.writer.now());
    let revoked = agent.clone();
    let found = app.write(move |tables| tables.revoke_agent(&revoked, now));
    if !found.await? {
        return Err(ApiError::not_found("agent"));
    }
    audit::done("agent.revoke", &who, &id);
    app.agents.order(&agent, SessionOrder::Revoked);
    Ok(StatusCode::NO_CONTENT)
}

async fn find(app: &App, id: &str) -> Result<AgentRow, ApiError> {
    let id = id.to_owned();
    let row = app.read(move |reader| reader.agent(&id)).await?;
    row.ok_or_else(|| ApiError::not_found("agent"))
}

fn not_revoked(row: AgentRow) -> Result<AgentRow, ApiError> {
    match row.revoked_at {
        None => Ok(row),
        Some(_) => Err(ApiError::new(
            ErrorCode::Conflict,
            "this agent was revoked: it takes no work, and none will be given to it",
        )),
    }
}

async fn store_drain(app: &App, id: &Text, drain: Option<Text>) -> Result<(), ApiError> {
    let id = id.clone();
    let found = app.write(move |tables| tables.drain_agent(&id, drain.as_deref()));
    found
        .await?
        .then_some(())
        .ok_or_else(|| ApiError::not_found("agent"))
}

/// With its leases as the store has them.
async fn whole(app: &App, row: AgentRow) -> Result<AgentView, ApiError> {
    let leases = held(app, &row.principal, &row.id, row.slots).await?;
    Ok(view(app, row, Some(leases)))
}

/// A row, overlaid with what this server knows better.
fn view(app: &App, mut row: AgentRow, held: Option<Vec<StoredLease>>) -> AgentView {
    if let Some(seen) = app.agents.unwritten_of(&row.id)
        && (seen.session, seen.seen_at) >= (row.session, row.seen_at)
    {
        (row.session, row.seen_at, row.about) = (seen.session, seen.seen_at, seen.about);
    }
    let mut noted = AgentRecord::read(&row.about);
    if let Some(present) = app.agents.here(&row.id)
        && present.session >= row.session
    {
        (row.session, row.seen_at) = (present.session, present.seen_at);
        noted = AgentRecord::from(&present);
    }
    if let Some(held) = &held {
        noted.leases = u32::try_from(held.len()).unwrap_or(u32::MAX);
    }
    let status = status(&row, &noted, app.writer.now());
    spelled(row, noted, status, held)
}

/// EP-6, EP-49: what counts most is said.
fn status(row: &AgentRow, noted: &AgentRecord, now: Millis) -> AgentStatus {
    let silent = now.since(row.seen_at).0.unsigned_abs() >= OFFLINE_AFTER.as_millis() as u64;
    if row.revoked_at.is_some() {
        AgentStatus::Revoked
    } else if silent || noted.since.is_none() {
        AgentStatus::Offline
    } else if noted.quarantined {
        AgentStatus::Quarantined
    } else if row.drain.is_some() || noted.draining {
        AgentStatus::Draining
    } else if noted.busy || noted.leases > 0 {
        AgentStatus::Busy
    } else {
        AgentStatus::Idle
    }
}

fn spelled(
    row: AgentRow,
    noted: AgentRecord,
    status: AgentStatus,
    held: Option<Vec<StoredLease>>,
) -> AgentView {
    let drain = row.drain.as_ref().map(|id| DrainView {
        drain_id: id.to_string(),
        leases_left: noted.leases,
        drained_at: noted.drained_at(id).map(at),
    });
    let runners = held
        .is_some()
        .then(|| noted.runners.iter().map(runner_pool).collect());
    let about = noted.about;
    AgentView {
        agent_id: row.id.to_string(),
        name: about.name,
        status,
        pool: about.pool,
        zones: about.zones,
        labels: about.labels,
        os: about.os,
        arch: about.arch,
        runtimes: about.runtimes,
        work: about.work,
        docker: about.docker,
        resources: AgentResources {
            cpu_cores: about.cpu_cores,
            memory_mb: about.memory_mb,
            disk_mb: about.disk_mb,
        },
        slots: about.slots,
        live_leases: noted.leases,
        leases: held.map(|held| held.iter().map(lease).collect()),
        runners,
        version: about.version,
        enforced: about.enforced,
        session_epoch: row.session,
        session_since: noted.since.map(|since| at(Millis(since))),
        seen_at: at(row.seen_at),
        created_at: at(row.created_at),
        drain,
        revoked_at: row.revoked_at.map(at),
    }
}

fn runner_pool(pool: &RunnerPool) -> RunnerPoolView {
    let why = Some(pool.last_error.clone()).filter(|it| !it.is_empty());
    RunnerPoolView {
        name: pool.name.clone(),
        up: pool.up,
        wanted: pool.wanted,
        in_flight: pool.in_flight,
        room: pool.room,
        waiting: pool.waiting,
        restarts: pool.restarts,
        last_error: why,
    }
}

fn lease(found: &StoredLease) -> AgentLease {
    let attempt = found.lease.attempt;
    AgentLease {
        job_id: attempt.job.to_string(),
        attempt: attempt.index,
        lease_epoch: found.lease.epoch,
        slot: found.slot,
        accepted: found.accepted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_offline_after_ninety_seconds_and_not_before() {
        // EP-6, EP-49
        let row = AgentRow {
            id: "a".into(),
            principal: "p".into(),
            resume: None,
            slots: 1,
            about: "".into(),
            session: 1,
            drain: None,
            created_at: Millis(0),
            seen_at: Millis(1_000),
            revoked_at: None,
            process: None,
        };
        let noted = AgentRecord {
            since: Some(0),
            ..AgentRecord::default()
        };
        let after = |seconds: i64| Millis(1_000 + seconds * 1_000);
        assert_eq!(status(&row, &noted, after(89)), AgentStatus::Idle);
        assert_eq!(status(&row, &noted, after(91)), AgentStatus::Offline);
        let holds = AgentRecord {
            leases: 1,
            ..noted.clone()
        };
        assert_eq!(status(&row, &holds, after(0)), AgentStatus::Busy);
        let fought_over = AgentRecord {
            quarantined: true,
            ..noted.clone()
        };
        assert_eq!(
            status(&row, &fought_over, after(0)),
            AgentStatus::Quarantined
        );
        let drained = AgentRow {
            drain: Some("d".into()),
            ..row.clone()
        };
        assert_eq!(status(&drained, &holds, after(0)), AgentStatus::Draining);
        let revoked = AgentRow {
            revoked_at: Some(Millis(2)),
            ..drained
        };
        assert_eq!(status(&revoked, &holds, after(0)), AgentStatus::Revoked);
    }
}
