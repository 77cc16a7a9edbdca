//! `delta-ci token`: make, list and revoke tokens, and what certificates grant. The secret is
//! printed once, alone, on stdout, or written into a file of this user's own.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};
use delta_core::Span;
use delta_wire::Seconds;
use delta_wire::api::{CreateToken, Role, TokenCreated, TokenView};

use crate::client::connect::{self, NoStore, Place};
use crate::client::{self, Client, Target};
use crate::exit::Exit;
use crate::failure::{Done, Failure, internal};
use crate::sanitize;
use crate::secret_input;
use crate::table::{self, Cell};
use crate::terminal::{Terminal, Tone};
use crate::{columns, human_time, timings};

const CREATE_EXAMPLES: &str = "\
Examples:
  delta-ci token create --role runner --data ./data --out runner.token
  delta-ci token create --role user --name ann --expires-in 30d --data ./data
  delta-ci token create --role enrolment --pool gpu --zone eu --label a100 --data ./data
  delta-ci token create --role runner --certificate build-1 --pool gpu --data ./data

Pool, zones and labels are what agents that use it may claim; what an agent says only narrows
them. A runner token of which nothing is said: the default pool, no zone, any label.";

const LIST_EXAMPLES: &str = "\
Examples:
  delta-ci token list --data ./data
  delta-ci token list --json --data ./data | jq -r '.[].token_id'";

const REVOKE_EXAMPLES: &str = "\
Examples:
  delta-ci token revoke tok_1f3a --data ./data
  delta-ci token revoke cert:build-1 --data ./data         every certificate of this name
  delta-ci token revoke oidc:forge:SUBJECT --data ./data";

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
    /// How long it is good for, such as 30d [default: for good; an enrolment: 1h, 24h at most]
    #[arg(long, visible_alias = "expires", value_name = "TIME", value_parser = timings::span)]
    expires_in: Option<Span>,
    /// A new file for it, which only this user can read, instead of stdout
    #[arg(long, value_name = "FILE", conflicts_with = "certificate")]
    out: Option<PathBuf>,
    #[command(flatten)]
    scope: Scope,
    #[command(flatten)]
    target: Target,
}

/// What agents that use it are granted.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "For agents")]
struct Scope {
    /// The pool they belong to [default: default]
    #[arg(long)]
    pool: Option<String>,
    /// A zone they may claim; repeatable
    #[arg(long, value_name = "ZONE")]
    zone: Vec<String>,
    /// A label they may claim, `*` for any; repeatable
    #[arg(long, value_name = "LABEL", conflicts_with = "no_label")]
    label: Vec<String>,
    /// No label at all, where a runner token would grant any
    #[arg(long)]
    no_label: bool,
    /// The one agent that may use it, by its id
    #[arg(long, value_name = "ID")]
    agent: Option<String>,
    /// No token: what whoever shows a certificate of this name is granted
    #[arg(long, value_name = "NAME")]
    certificate: Option<String>,
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
    /// Lets one new agent in, once
    Enrolment,
}

impl RoleName {
    fn role(self) -> Role {
        match self {
            RoleName::Runner => Role::Runner,
            RoleName::User => Role::User,
            RoleName::Admin => Role::Admin,
            RoleName::Enrolment => Role::Enrolment,
        }
    }
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    match args.action {
        Action::Create(args) => create(args, terminal).await,
        Action::List(args) => {
            client::reading(&args.target, async |client| list(client, terminal).await).await
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
    let Scope { label, zone, .. } = args.scope;
    let named = args.name.or_else(|| args.scope.certificate.clone());
    let request = CreateToken {
        role,
        name: named.unwrap_or_else(|| role.as_str().to_owned()),
        expires_in_seconds: args
            .expires_in
            .map(|span| Seconds::from_millis(u64::try_from(span.0).unwrap_or(0))),
        pool: args.scope.pool,
        zones: zone,
        labels: (!label.is_empty() || args.scope.no_label).then_some(label),
        agent_id: args.scope.agent,
        certificate: args.scope.certificate,
    };
    // Before there is a secret that would have nowhere to go.
    let mut out = args.out.as_deref().map(NewFile::make).transpose()?;
    // The first token may be made before the first start: the folder comes into being here.
    let fresh = match args.target.place()? {
        Place::Folder { path, .. } if args.target.store.is_none() => {
            (!connect::has_store(&path).await).then_some(path)
        }
        _ => None,
    };
    let act = async |client: &Client| {
        let text = client.post_text("/api/v1/tokens", &request).await?;
        let mut created: TokenCreated = client::read(&text)?;
        if let (Some(out), Some(token)) = (&mut out, created.token.take_if(|_| args.out.is_some()))
        {
            out.keep(&token)?;
        }
        if let Some(folder) = &fresh {
            let folder = secret_input::shown(folder);
            terminal.say(&format!(
                "a new store was made in {folder}: delta-ci server --data {folder} serves it"
            ));
        }
        match &created.token {
            _ if terminal.json => terminal.value(&created),
            Some(token) => terminal.data(token),
            None if args.out.is_some() => {}
            None => terminal.data(&sanitize::text(&created.view.token_id)),
        }
        Ok(Exit::Ok)
    };
    connect::reach(&args.target, NoStore::Make, act).await
}

/// A file for a secret: made before there is one, and gone again where none came.
struct NewFile {
    path: PathBuf,
    file: File,
    kept: bool,
}

impl NewFile {
    fn make(path: &Path) -> Result<NewFile, Failure> {
        let mut options = OpenOptions::new();
        let made = options.write(true).create_new(true).mode(0o600).open(path);
        let file = made.map_err(|error| {
            let what = format!("cannot make {}", secret_input::shown(path));
            let failure = Failure::new(Exit::Refused, what).caused_by(&error);
            match error.kind() {
                io::ErrorKind::AlreadyExists => {
                    failure.next("name another file: what is in this one may be in use")
                }
                _ => failure,
            }
        })?;
        Ok(NewFile {
            path: path.to_owned(),
            file,
            kept: false,
        })
    }

    fn keep(&mut self, secret: &str) -> Result<(), Failure> {
        let written = self.file.write_all(format!("{secret}\n").as_bytes());
        written
            .and_then(|()| self.file.sync_all())
            .map_err(internal("the token was made and could not be written"))?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.kept {
            // It is empty, and ours.
            let _ = std::fs::remove_file(&self.path);
        }
    }
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
    table::show(terminal, &columns::TOKENS, &rows);
    Ok(Exit::Ok)
}

fn row(token: &TokenView) -> Vec<Cell> {
    let now = human_time::now();
    let used = token.used_at.map(|at| {
        let by = sanitize::text(token.used_by.as_deref().unwrap_or("?"));
        let used = format!("used {} by {by}", human_time::relative(at, now));
        match token.reused_at {
            // Somebody else has a copy of it.
            Some(at) => format!("{used}; TRIED AGAIN {}", human_time::relative(at, now)),
            None => used,
        }
    });
    let standing = match (token.revoked_at, token.expires_at) {
        (None, _) if used.is_some() => {
            let tone = token.reused_at.map_or(Tone::Quiet, |_| Tone::Bad);
            Cell::toned(used.unwrap_or_default(), tone)
        }
        (Some(at), _) => Cell::toned(
            format!("revoked {}", human_time::relative(at, now)),
            Tone::Warn,
        ),
        (None, Some(at)) if at.0 <= now.0 => Cell::toned(
            format!("expired {}", human_time::relative(at, now)),
            Tone::Warn,
        ),
        (None, Some(at)) => Cell::toned(
            format!("expires {}", human_time::relative(at, now)),
            Tone::Good,
        ),
        (None, None) => Cell::toned("good", Tone::Good),
    };
    vec![
        Cell::from(sanitize::text(&token.token_id)),
        Cell::from(token.role.as_str()),
        Cell::from(sanitize::text(&token.name)),
        Cell::from(sanitize::text(&grants(token))),
        Cell::from(human_time::relative(token.created_at, now)),
        standing,
    ]
}

/// Pool, zones and labels in a few words.
fn grants(token: &TokenView) -> String {
    let mut words: Vec<String> = token.pool.iter().cloned().collect();
    words.extend(token.zones.iter().map(|zone| format!("zone={zone}")));
    words.extend(token.labels.iter().cloned());
    words.extend(token.agent_id.iter().map(|agent| format!("only {agent}")));
    words.join(" ")
}

/// An id as part of a path: a certificate's name may be a URI.
pub fn path_part(id: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    id.bytes()
        .map(|byte| {
            if plain(byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

async fn revoke(client: &Client, id: &str, terminal: &Terminal) -> Done {
    let text = client
        .delete(&format!("/api/v1/tokens/{}", path_part(id)))
        .await?;
    if terminal.json {
        let value: serde_json::Value = if text.is_empty() {
            serde_json::json!({ "token_id": id, "revoked": true })
        } else {
            client::read(&text)?
        };
        terminal.value(&value);
    } else {
        terminal.say(&format!("{} is worthless now", sanitize::text(id)));
    }
    Ok(Exit::Ok)
}
