//! The description of the API: what the handlers say of themselves, and the answers that come
//! before any handler is asked.
//!
//! A missing credential, a role that does not reach, a body too large, a full queue and a store
//! that is away are answered alike everywhere. They are added here by rule, so that no handler can
//! forget one.

use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi, PathItem, Ref, RefOr, Response, ResponseBuilder};

/// The name of the bearer token among the ways to authenticate.
const BEARER: &str = "bearer";

/// The document as it is served.
pub fn complete(mut openapi: OpenApi) -> OpenApi {
    let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    let components = openapi.components.get_or_insert_default();
    components.add_security_scheme(BEARER, bearer);
    for (path, item) in &mut openapi.paths.paths {
        // Health and metrics are for whoever reaches the port, and so is this document. A delivery
        // proves itself.
        let open = !path.starts_with("/api/v1/")
            || path == "/api/v1/openapi.json"
            || path.starts_with("/api/v1/webhooks/");
        if open {
            continue;
        }
        let streams = path.ends_with("/events") || path.ends_with("/log");
        for (method, operation) in operations(item) {
            let security = SecurityRequirement::new(BEARER, [""; 0]);
            operation.security.get_or_insert_default().push(security);
            add(operation, 401, "no valid bearer token");
            add(operation, 403, "the token's role does not reach this far");
            add(
                operation,
                503,
                "the store is away or the server is stopping; see Retry-After",
            );
            let writes = method != "get";
            if writes || streams {
                add(operation, 429, "a queue is full; see Retry-After");
            }
            if writes && operation.request_body.is_some() {
                add(operation, 413, "the body is too large");
                add(operation, 422, "the field that is wrong, or all of them");
            }
        }
    }
    openapi
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = (&'static str, &mut Operation)> {
    let all = [
        ("get", &mut item.get),
        ("post", &mut item.post),
        ("put", &mut item.put),
        ("delete", &mut item.delete),
    ];
    all.into_iter()
        .filter_map(|(method, it)| it.as_mut().map(|it| (method, it)))
}

/// What the handler says itself stays.
fn add(operation: &mut Operation, status: u16, description: &str) {
    let responses = &mut operation.responses.responses;
    responses
        .entry(status.to_string())
        .or_insert_with(|| RefOr::T(refusal(description)));
}

fn refusal(description: &str) -> Response {
    let schema = Ref::from_schema_name("ErrorBody");
    let content = ContentBuilder::new().schema(Some(schema)).build();
    ResponseBuilder::new()
        .description(description)
        .content("application/json", content)
        .build()
}
