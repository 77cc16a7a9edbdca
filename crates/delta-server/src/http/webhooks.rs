//! Deliveries of forges. Whoever sends one proves with it that it knows the repository's secret;
//! all others hear the same, after the body was read and its signature computed once, whether there
//! is such a repository or not (T18).
//!
//! Nobody is known before the whole body is read. So what cannot be signed is not read at all, a
//! body arrives soon, and one address keeps few places: strangers wait for each other.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use delta_core::{Command, Reply};
use delta_forge::{BadDelivery, Kind};
use delta_wire::api::DeliveryView;
use delta_wire::{ErrorBody, ErrorCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::error::ApiError;
use super::extract::{Path, read};
use super::secrets::on_keys;
use crate::forges::trigger::{Heard, Meaning, meaning};
use crate::forges::{self, Registered};
use crate::listen::PeerAddress;

/// Deliveries that are read at once: each may hold its largest body in memory.
const AT_ONCE: usize = 32;
/// And from one address.
const FROM_AN_ADDRESS: usize = 8;
/// How long a delivery waits for its turn.
const TURN: Duration = Duration::from_secs(8);
/// How long a body may take to arrive: a forge sends it in one go.
const BODY_TIME: Duration = Duration::from_secs(5);

/// What is computed with where there is no secret; whatever comes of it is refused.
const NOBODYS: &str = "the secret of no repository";

/// Places for deliveries that are being read.
pub struct Places {
    all: Semaphore,
    by_address: Mutex<HashMap<IpAddr, Arc<Semaphore>>>,
}

impl Default for Places {
    fn default() -> Places {
        Places {
            all: Semaphore::new(AT_ONCE),
            by_address: Mutex::default(),
        }
    }
}

/// A place among those of its address, and among all.
struct Place<'p> {
    all: Option<SemaphorePermit<'p>>,
    own: Option<OwnedSemaphorePermit>,
    address: IpAddr,
    places: &'p Places,
}

impl Places {
    /// Waits for a place; none when it takes too long.
    async fn take(&self, address: Option<PeerAddress>) -> Option<Place<'_>> {
        // The admin socket has no address; whoever is there is one of us.
        let address = address.map_or(Ipv6Addr::UNSPECIFIED.into(), |it| network(it.0));
        let own = {
            let mut known = self.known();
            let places = || Arc::new(Semaphore::new(FROM_AN_ADDRESS));
            known.entry(address).or_insert_with(places).clone()
        };
        // Made first, so that it is given back whatever happens.
        let mut place = Place {
            all: None,
            own: None,
            address,
            places: self,
        };
        let wait = async {
            place.own = own.acquire_owned().await.ok();
            place.all = self.all.acquire().await.ok();
        };
        tokio::time::timeout(TURN, wait).await.ok()?;
        Some(place)
    }

    /// How many are taken, and how many one address may have.
    #[cfg(test)]
    pub fn taken(&self) -> (usize, usize) {
        (AT_ONCE - self.all.available_permits(), FROM_AN_ADDRESS)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<IpAddr, Arc<Semaphore>>> {
        let known = self.by_address.lock();
        known.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        (self.own, self.all) = (None, None);
        let mut known = self.places.known();
        let alone = |it: &Arc<Semaphore>| Arc::strong_count(it) == 1;
        if known.get(&self.address).is_some_and(alone) {
            known.remove(&self.address);
        }
    }
}

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
    let Some(_place) = app.webhooks.take(address.map(|it| it.0)).await else {
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
        let Some(registered) = forges::find(&*app.reader, &wanted)? else {
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
