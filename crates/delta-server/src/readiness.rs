//! Whether this server should be sent requests now: what `/readyz` and gRPC's health service say.
//!
//! Anybody may ask, so the words are for anybody; what the database said is for the log.

use crate::app::App;

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
    app.writer.can_write().await.map_err(str::to_owned)
}
