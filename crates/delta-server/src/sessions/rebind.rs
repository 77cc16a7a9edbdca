//! An agent that comes with another credential than the one its id was made with (A26, T3).
//!
//! A shared token is replaced now and then, and whoever had it is not another agent for that. What
//! proves it is the secret it was given at its first registration, or an administrator who bound
//! the new credential to this very id; and the old credential must be out of force, so that nobody
//! is pushed out who may still come. Leases do not change hands: they are bound to the credential
//! that got them, so that work in progress ends here, and is tried again when its lease does.

use delta_core::{Millis, Text};
use delta_store::agents::AgentRow;
use delta_store::read::Credential;
use tonic::Status;

use crate::app::App;
use crate::identity::{CERTIFICATE, OIDC, Principal};

/// Gives the id to the credential that is shown; nothing, where it stays with the old one.
pub async fn rebind(
    app: &App,
    principal: &Principal,
    mut row: AgentRow,
) -> Result<Option<AgentRow>, Status> {
    let by_an_administrator = principal.agent.as_ref() == Some(&row.id);
    if row.resume.is_none() && !by_an_administrator {
        return Ok(None);
    }
    let credentials = app.read(|reader| reader.credentials()).await;
    let credentials = credentials.map_err(super::register::unavailable)?;
    let old = credentials.iter().find(|it| it.id == row.principal);
    if !is_void(&row.principal, old, app.writer.now()) {
        return Ok(None);
    }
    let (id, from, to) = (row.id.clone(), row.principal.clone(), principal.id.clone());
    let rebound = app.write(move |tables| tables.rebind_agent(&id, &from, &to));
    if !rebound.await.map_err(super::register::unavailable)? {
        return Err(Status::unavailable("the agent is being changed; try again"));
    }
    tracing::info!(target: "audit", action = "agent.rebind", by = %principal.id, what = %row.id,
        from = %row.principal);
    row.principal = principal.id.clone();
    Ok(Some(row))
}

/// Whether nobody can come with this credential any more.
fn is_void(id: &Text, row: Option<&Credential>, now: Millis) -> bool {
    match row {
        Some(row) => row.revoked_at.is_some() || row.expires_at.is_some_and(|at| now >= at),
        // Those whom others vouch for need no row with us.
        None => !id.starts_with(CERTIFICATE) && !id.starts_with(OIDC),
    }
}
