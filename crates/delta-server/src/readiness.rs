//! Whether this server should be sent requests now: what `/readyz` and gRPC's health service say.
//!
//! Anybody may ask, so the words are for anybody; what the database said is for the log.

use crate::app::App;
use crate::not_done::NotDone;
use crate::objects::Objects;

/// Said while the disk of logs and artifacts has no room, or cannot be written to.
const FULL: &str = "the disk of the server's logs and artifacts is full";
const FAILING: &str =
    "the disk of the server's logs and artifacts cannot be written to: the server's log says why";

/// Ready, or why not.
pub async fn ready(app: &App) -> Result<(), String> {
    if app.stop.is_cancelled() {
        return Err("the server is stopping".into());
    }
    if app.writer.is_dead() {
        return Err("the writer has ended".into());
    }
    if let Some(why) = app.writer.shared().unready() {
        return Err(why);
    }
    if let Err(why) = app.read(|reader| reader.ping()).await {
        tracing::warn!(%why, "the store does not answer");
        return Err("the store does not answer".into());
    }
    app.writer.can_write().await?;
    Ok(files_can_be_written(app).await?)
}

/// Whether logs and artifacts have room: a server that loses what jobs print is not ready for them.
async fn files_can_be_written(app: &App) -> Result<(), &'static str> {
    if let Some(known) = app.files_proof.known() {
        return known;
    }
    let probed = match app.files(Objects::probe).await {
        Ok(()) => Ok(()),
        Err(NotDone::StorageFull) => Err(FULL),
        Err(_) => Err(FAILING),
    };
    app.files_proof.note(probed);
    probed
}
