//! `delta-ci token`: make, list and revoke tokens. The secret is printed once, alone, on stdout.

use clap::{Subcommand, ValueEnum};
use delta_core::Span;
use delta_wire::Seconds;
use delta_wire::api::{CreateToken, Role, TokenCreated, TokenView};

use crate::clean;
use crate::client::connect::{self, NoStore, Place};
use crate::client::{self, Client, Target};
use crate::exit::Exit;
use crate::failure::Done;
use crate::table::{self, Cell};
use crate::terminal::{Terminal, Tone};
use crate::{moment, timings};

const CREATE_EXAMPLES: &str = "\
Examples:
  delta-ci token create --role runner --data ./data > runner.token
  delta-ci token create --role user --name ann --expires-in 30d --data ./data";

const LIST_EXAMPLES: &str = "\
Examples:
  delta-ci token list --data ./data
  delta-ci token list --json --data ./data | jq -r '.[].token_id'";

const REVOKE_EXAMPLES: &str = "\
Examples:
  delta-ci token revoke tok_1f3a --data ./data";

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a token; prints it, and nothing else, on stdout
    #[command(after_help = CREATE_EXAMPLES)]
    Create(Create),
    /// List tokens, never their secrets
    #[command(after_help = LIST_EXAMPLES)]
    List(List),
    /// Make a token worthless
    #[command(after_help = REVOKE_EXAMPLES)]
    Revoke(Revoke),
}

#[derive(Debug, clap::Args)]
struct Create {
    /// What it may do
    #[arg(long)]
    role: RoleName,
    /// Who or what uses it, for people [default: the role]
    #[arg(long)]
    name: Option<String>,
    /// How long it is good for, such as 30d [default: for good]
    #[arg(long, value_name = "TIME", value_parser = timings::span)]
    expires_in: Option<Span>,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, clap::Args)]
struct List {
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, clap::Args)]
struct Revoke {
    /// The token's id, from `token list`
    id: String,
    #[command(flatten)]
    target: Target,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoleName {
    /// Executes jobs
    Runner,
    /// Starts and watches runs
    User,
    /// Does everything, and hands out tokens
    Admin,
}

impl RoleName {
    fn role(self) -> Role {
        match self {
            RoleName::Runner => Role::Runner,
            RoleName::User => Role::User,
            RoleName::Admin => Role::Admin,
        }
    }
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    match args.action {
        Action::Create(args) => create(args, terminal).await,
        Action::List(args) => {
            client::with(&args.target, async |client| list(client, terminal).await).await
        }
        Action::Revoke(args) => {
            client::with(&args.target, async |client| {
                revoke(client, &args.id, terminal).await
            })
            .await
        }
    }
}

async fn create(args: Create, terminal: &Terminal) -> Done {
    let role = args.role.role();
    let request = CreateToken {
        role,
        name: args.name.unwrap_or_else(|| role.as_str().to_owned()),
        expires_in_seconds: args
            .expires_in
            .map(|span| Seconds::from_millis(u64::try_from(span.0).unwrap_or(0))),
    };
    // The first token may be made before the first start: the folder comes into being here.
    let fresh = match args.target.place()? {
        Place::Folder { path, .. } if args.target.store.is_none() => {
            (!connect::has_store(&path).await).then_some(path)
        }
        _ => None,
    };
    let act = async |client: &Client| {
        let text = client.post_text("/api/v1/tokens", &request).await?;
        let created: TokenCreated = client::read(&text)?;
        if let Some(folder) = &fresh {
            let folder = folder.display();
            terminal.say(&format!(
                "a new store was made in {folder}: delta-ci server --data {folder} serves it"
            ));
        }
        if terminal.json {
            terminal.value(&created);
        } else {
            terminal.data(&created.token);
        }
        Ok(Exit::Ok)
    };
    connect::reach(&args.target, NoStore::Make, act).await
}

async fn list(client: &Client, terminal: &Terminal) -> Done {
    let text = client.get_text("/api/v1/tokens").await?;
    if terminal.json {
        terminal.value(&client::read::<serde_json::Value>(&text)?);
        return Ok(Exit::Ok);
    }
    let tokens: Vec<TokenView> = client::read(&text)?;
    if tokens.is_empty() {
        terminal.say("no tokens");
        return Ok(Exit::Ok);
    }
    let rows: Vec<Vec<Cell>> = tokens.iter().map(row).collect();
    let header = ["TOKEN", "ROLE", "NAME", "CREATED", "STANDING"];
    for line in table::render(terminal, &header, &rows) {
        terminal.data(&line);
    }
    Ok(Exit::Ok)
}

fn row(token: &TokenView) -> Vec<Cell> {
    let now = moment::now();
    let standing = match (token.revoked_at, token.expires_at) {
        (Some(at), _) => Cell::toned(format!("revoked {}", moment::relative(at, now)), Tone::Warn),
        (None, Some(at)) if at.0 <= now.0 => {
            Cell::toned(format!("expired {}", moment::relative(at, now)), Tone::Warn)
        }
        (None, Some(at)) => {
            Cell::toned(format!("expires {}", moment::relative(at, now)), Tone::Good)
        }
        (None, None) => Cell::toned("good", Tone::Good),
    };
    vec![
        Cell::from(clean::text(&token.token_id)),
        Cell::from(token.role.as_str()),
        Cell::from(clean::text(&token.name)),
        Cell::from(moment::relative(token.created_at, now)),
        standing,
    ]
}

async fn revoke(client: &Client, id: &str, terminal: &Terminal) -> Done {
    let text = client.delete(&format!("/api/v1/tokens/{id}")).await?;
    if terminal.json {
        let value: serde_json::Value = match text.is_empty() {
            true => serde_json::json!({ "token_id": id, "revoked": true }),
            false => client::read(&text)?,
        };
        terminal.value(&value);
    } else {
        terminal.say(&format!("{} is worthless now", clean::text(id)));
    }
    Ok(Exit::Ok)
}
