//! Deliveries of forges. Whoever sends one proves with it that it knows the repository's secret;
//! all others hear the same, after the body was read and its signature computed once, whether there
//! is such a repository or not (T18).
//!
//! Nobody is known before the whole body is read. So what cannot be signed is not read at all, a
//! body arrives soon, and one address keeps few places: strangers wait for each other.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use delta_core::{Command, Reply};
use delta_forge::{BadDelivery, Kind};
use delta_wire::api::DeliveryView;
use delta_wire::{ErrorBody, ErrorCode};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{Path, read};
use super::secrets::on_keys;
use crate::app::App;
use crate::forges::trigger::{Heard, Meaning, meaning};
use crate::forges::{self, Registered};
use crate::listen::PeerAddress;

/// How long a delivery waits for its turn.
const TURN: Duration = Duration::from_secs(8);
/// How long a body may take to arrive: a forge sends it in one go.
const BODY_TIME: Duration = Duration::from_secs(5);

/// What is computed with where there is no secret; whatever comes of it is refused.
const NOBODYS: &str = "the secret of no repository";

/// Who has one address of version 6 has 2^64 of them.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(it) => Ipv6Addr::from_bits(it.to_bits() & !u128::from(u64::MAX)).into(),
        four => four,
    }
}

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(deliver_webhook))
}

/// What a forge delivers: signed with the repository's secret, taken once.
#[utoipa::path(post, path = "/api/v1/webhooks/{repository}", tag = "repositories",
    params(("repository" = String, Path)),
    request_body(content = serde_json::Value, description = "as the forge sends it"),
    responses(
        (status = 202, description = "the run it made, or why there is none",
            body = DeliveryView),
        (status = 401, description = "not signed with this repository's secret",
            body = ErrorBody),
        (status = 409, description = "the number of the delivery was used with another body",
            body = ErrorBody),
        (status = 413, body = ErrorBody), (status = 422, body = ErrorBody)))]
async fn deliver_webhook(
    State(app): State<App>,
    Path(name): Path<String>,
    headers: HeaderMap,
    address: Option<Extension<PeerAddress>>,
    body: Body,
) -> Result<(StatusCode, axum::Json<DeliveryView>), ApiError> {
    let may_be_signed = |kind: &Kind| kind.dialect().has_signature(&headers);
    let Some(claimed) = Kind::ALL.into_iter().find(may_be_signed) else {
        return Err(not_signed(&app));
    };
    // A forge delivers once and gives up after ten seconds: it waits for its turn, not for nothing.
    // The admin socket has no address; whoever is there is one of us.
    let address = address.map_or(Ipv6Addr::UNSPECIFIED.into(), |peer| network(peer.0.0));
    let place = tokio::time::timeout(TURN, app.webhooks.take(address)).await;
    let Ok(_place) = place else {
        let message = "too many deliveries are being read; try again";
        return Err(ApiError::new(ErrorCode::Unavailable, message));
    };
    let bytes = tokio::time::timeout(BODY_TIME, read(body, delta_forge::MAX_BODY));
    let bytes = bytes.await.map_err(|_| {
        let message = format!("the body did not arrive within {} s", BODY_TIME.as_secs());
        ApiError::new(ErrorCode::Unavailable, message)
    })??;
    let wanted = name.clone();
    let found = on_keys(&app, move |app, keys| {
        let Some(registered) = forges::find(&*app.sides.reader, &wanted)? else {
            return Ok(None);
        };
        let secret = registered.webhook_secret(keys)?;
        Ok(Some((registered, secret)))
    });
    let found = found.await?;
    let Some((registered, secret)) = found.filter(|(it, _)| may_be_signed(&it.site.kind)) else {
        // A body has megabytes: what was not computed could be told by the clock.
        let secret = delta_forge::Secret::new(NOBODYS);
        std::hint::black_box(claimed.dialect().is_signed(&headers, &bytes, &secret));
        return Err(not_signed(&app));
    };
    let project = registered.site.project();
    let delivery = delta_forge::read(registered.site.kind, &headers, &bytes, &secret, &project);
    let delivery = delivery.map_err(|bad| match bad {
        BadDelivery::Signature => not_signed(&app),
        other => ApiError::new(ErrorCode::Invalid, other.to_string()),
    })?;
    app.metrics().webhooks.inc();
    let view = take(&app, &registered, &delivery, &bytes).await?;
    Ok((StatusCode::ACCEPTED, axum::Json(view)))
}

/// One answer for everybody who does not prove to be the forge.
fn not_signed(app: &App) -> ApiError {
    app.metrics().webhooks_refused.inc();
    let message = BadDelivery::Signature.to_string();
    ApiError::new(ErrorCode::Unauthenticated, message)
}

async fn take(
    app: &App,
    registered: &Registered,
    delivery: &delta_forge::Delivery,
    body: &[u8],
) -> Result<DeliveryView, ApiError> {
    let at = app.writer.now();
    let heard = Heard {
        registered,
        delivery,
        body,
        at,
        id: app.fresh_run_id(at),
        settings: &app.writer.shared().settings,
    };
    let new = match meaning(&heard) {
        Meaning::Run(new) => new,
        Meaning::Nothing(note) => {
            return Ok(DeliveryView {
                run_id: None,
                replayed: false,
                note: Some(note),
            });
        }
    };
    let command = Command::CreateRun(new);
    let answer = app.writer.create(at, command, Vec::new()).await?;
    let Reply::Created { run, replayed } = answer.reply else {
        return Err(ApiError::new(ErrorCode::Internal, "no run was made"));
    };
    app.planning.notify_one();
    let repository = &*registered.row.name;
    tracing::info!(target: "audit", action = "webhook", repository, delivery = delivery.id,
        %run, replayed);
    Ok(DeliveryView {
        run_id: Some(run.to_string()),
        replayed,
        note: None,
    })
}
