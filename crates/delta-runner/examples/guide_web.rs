//! A web application that sends mail in the background.

use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use delta_runner::client::{Client, ClientError, NewCall};
use serde_json::{Value, json};

#[derive(serde::Deserialize)]
struct Signup {
    email: String,
}

fn failed(error: ClientError) -> (StatusCode, String) {
    (StatusCode::BAD_GATEWAY, format!("{error}\n"))
}

/// Answers at once; the mail is on the server's disk, and will be sent.
async fn signup(
    State(client): State<Client>,
    Query(who): Query<Signup>,
) -> Result<(StatusCode, String), (StatusCode, String)> {
    let mail = json!({"to": who.email, "subject": "Welcome"});
    let call = NewCall::new("mail#send_email").params(mail).queue("mail");
    let call = client.enqueue(call).await.map_err(failed)?;
    Ok((StatusCode::ACCEPTED, format!("{}\n", call.id)))
}

async fn sent(
    State(client): State<Client>,
    Path(id): Path<String>,
) -> Result<String, (StatusCode, String)> {
    let wait = Some(Duration::from_secs(20));
    let result: Value = client.result(&id, wait).await.map_err(failed)?;
    Ok(format!("{result}\n"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::from_environment()?;
    let app = Router::new()
        .route("/signup", post(signup))
        .route("/mail/{id}", get(sent))
        .with_state(client);
    let address = std::env::args().nth(1).ok_or("which address?")?;
    let listener = tokio::net::TcpListener::bind(&address).await?;
    println!("http://{address}");
    axum::serve(listener, app).await?;
    Ok(())
}
