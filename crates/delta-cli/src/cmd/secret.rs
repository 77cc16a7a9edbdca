//! `delta-ci secret`: set, list, remove and rotate secrets. A value comes from standard input or a
//! file, never from an argument, and is never shown again.

use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};
use delta_wire::api::{SecretKind, SecretView, SecretsRotated, SetSecret};

use super::token::path_part;
use crate::client::connect::{self, NoStore};
use crate::client::{self, Client, Target};
use crate::columns;
use crate::exit::Exit;
use crate::failure::{Done, Failure};
use crate::human_time;
use crate::sanitize;
use crate::secret_input;
use crate::table::{self, Cell};
use crate::terminal::Terminal;

/// What to type when the value is empty.
const SET_AGAIN: &str = "printf %s \"$VALUE\" | delta-ci secret set NAME, or --file FILE";

const SET_EXAMPLES: &str = "\
Examples:
  printf %s \"$TOKEN\" | delta-ci secret set DEPLOY_TOKEN
  delta-ci secret set DEPLOY_TOKEN --repository https://forge.example/team/app < token
  delta-ci secret set DEPLOY_TOKEN --environment production --file token
  delta-ci secret set CLONE --kind token --username git --file token
  ssh-keyscan forge.example > hosts      compare what it prints with what the forge publishes
  delta-ci secret set CLONE --kind ssh-key --known-hosts hosts --file id_ed25519

A job gets it by naming it, in .delta-ci.yaml:
  secrets: [DEPLOY_TOKEN]                as the variable DEPLOY_TOKEN
  secrets: [{ name: DEPLOY_TOKEN, env: TOKEN }]
  checkout: { credential: CLONE }        for the checkout alone
  environment: production                which of several of one name

Of several with one name the narrowest counts: one for the repository before one for the branch
before one for the environment before one for all. Untrusted runs get none.";

const LIST_EXAMPLES: &str = "\
Examples:
  delta-ci secret list
  delta-ci secret list --json | jq -r '.[].name'";

const RM_EXAMPLES: &str = "\
Examples:
  delta-ci secret rm DEPLOY_TOKEN
  delta-ci secret rm DEPLOY_TOKEN --repository https://forge.example/team/app";

const ROTATE_EXAMPLES: &str = "\
Examples:
  (umask 077; set -C; (head -c 32 /dev/urandom | base64; cat data/secret.key) > new.key)
                                                             the new key first, in a new file
  delta-ci server --data ./data --secret-key-file new.key    start the server with both
  delta-ci secret rotate --data ./data                       then the old key may go

This is for a server that made its own key, data/secret.key.";

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Set a secret or replace it; the value is read from standard input or a file
    #[command(after_help = SET_EXAMPLES)]
    Set(Set),
    /// List secrets, never their values
    #[command(after_help = LIST_EXAMPLES)]
    List(List),
    /// Remove a secret
    #[command(after_help = RM_EXAMPLES, visible_alias = "remove")]
    Rm(Rm),
    /// Seal every secret anew with the server's first key
    #[command(after_help = ROTATE_EXAMPLES)]
    Rotate(Rotate),
}

/// What a secret is good for.
#[derive(Debug, clap::Args)]
struct Scope {
    /// Only for runs of this repository, as runs name it [default: all]
    #[arg(long, value_name = "URL")]
    repository: Option<String>,
    /// Only for runs of this branch, never of a pull request [default: all]
    #[arg(long, value_name = "NAME")]
    branch: Option<String>,
    /// Only for jobs of this environment [default: all]
    #[arg(long, value_name = "NAME")]
    environment: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Set {
    /// Letters, digits and `_`
    name: String,
    #[command(flatten)]
    scope: Scope,
    /// What its value is
    #[arg(long, default_value = "plain")]
    kind: KindName,
    /// The file with the value [default: standard input]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Who a token belongs to, where the other side asks
    #[arg(long, value_name = "NAME")]
    username: Option<String>,
    /// The hosts an SSH key may be shown to, as a known_hosts file
    #[arg(long, value_name = "FILE")]
    known_hosts: Option<PathBuf>,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, clap::Args)]
struct List {
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, clap::Args)]
struct Rm {
    name: String,
    #[command(flatten)]
    scope: Scope,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, clap::Args)]
struct Rotate {
    #[command(flatten)]
    target: Target,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KindName {
    /// Any text
    Plain,
    /// A token for HTTPS
    Token,
    /// A private key for SSH
    SshKey,
}

impl KindName {
    fn kind(self) -> SecretKind {
        match self {
            KindName::Plain => SecretKind::Plain,
            KindName::Token => SecretKind::Token,
            KindName::SshKey => SecretKind::SshKey,
        }
    }
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    match args.action {
        Action::Set(args) => set(args, terminal).await,
        Action::List(args) => {
            client::reading(&args.target, async |client| list(client, terminal).await).await
        }
        Action::Rm(args) => {
            client::with(&args.target, async |client| {
                remove(client, &args, terminal).await
            })
            .await
        }
        Action::Rotate(args) => {
            client::with(&args.target, async |client| rotate(client, terminal).await).await
        }
    }
}

async fn set(args: Set, terminal: &Terminal) -> Done {
    let kind = args.kind.kind();
    let known_hosts = args
        .known_hosts
        .as_deref()
        .map(secret_input::text_of)
        .transpose()?;
    let request = SetSecret {
        name: args.name,
        value: value(args.file.as_deref(), kind, terminal)?,
        repository: args.scope.repository,
        branch: args.scope.branch,
        environment: args.scope.environment,
        kind,
        username: args.username,
        known_hosts,
    };
    // The first secret may be set before the first start.
    connect::reach(&args.target, NoStore::Make, async |client: &Client| {
        let text = client.post_text("/api/v1/secrets", &request).await?;
        let view: SecretView = client::read(&text)?;
        if terminal.json {
            terminal.value(&view)
        } else {
            terminal.say(&format!("{} is set", sanitize::text(&view.name)))
        }
        Ok(Exit::Ok)
    })
    .await
}

/// The value as it is stored: a key ends with a newline.
fn value(file: Option<&Path>, kind: SecretKind, terminal: &Terminal) -> Result<String, Failure> {
    let mut text = secret_input::value(file, SET_AGAIN, terminal)?;
    if kind == SecretKind::SshKey {
        text.push('\n');
    }
    Ok(text)
}

async fn list(client: &Client, terminal: &Terminal) -> Done {
    let text = client.get_text("/api/v1/secrets").await?;
    if terminal.json {
        terminal.value(&client::read::<serde_json::Value>(&text)?);
        return Ok(Exit::Ok);
    }
    let secrets: Vec<SecretView> = client::read(&text)?;
    if secrets.is_empty() {
        terminal.say("no secrets");
        return Ok(Exit::Ok);
    }
    let now = human_time::now();
    let all = |text: &Option<String>| sanitize::text(text.as_deref().unwrap_or("all"));
    let rows: Vec<Vec<Cell>> = secrets
        .iter()
        .map(|secret| {
            vec![
                Cell::from(sanitize::text(&secret.name)),
                Cell::from(secret.kind.as_str()),
                Cell::from(all(&secret.repository)),
                Cell::from(all(&secret.branch)),
                Cell::from(all(&secret.environment)),
                Cell::from(human_time::relative(secret.updated_at, now)),
                Cell::from(sanitize::text(&secret.updated_by)),
            ]
        })
        .collect();
    table::show(terminal, &columns::SECRETS, &rows);
    Ok(Exit::Ok)
}

async fn remove(client: &Client, args: &Rm, terminal: &Terminal) -> Done {
    let mut path = format!("/api/v1/secrets/{}", path_part(&args.name));
    let scope = [
        ("repository", &args.scope.repository),
        ("branch", &args.scope.branch),
        ("environment", &args.scope.environment),
    ];
    let mut sign = '?';
    for (name, value) in scope {
        if let Some(value) = value {
            path.push_str(&format!("{sign}{name}={}", path_part(value)));
            sign = '&';
        }
    }
    client.delete(&path).await?;
    if terminal.json {
        terminal.value(&serde_json::json!({ "name": args.name, "removed": true }))
    } else {
        terminal.say(&format!("{} is removed", sanitize::text(&args.name)))
    }
    Ok(Exit::Ok)
}

async fn rotate(client: &Client, terminal: &Terminal) -> Done {
    let nothing = serde_json::json!({});
    let text = client.post_text("/api/v1/secrets/rotate", &nothing).await?;
    let done: SecretsRotated = client::read(&text)?;
    if terminal.json {
        terminal.value(&done);
        return Ok(Exit::Ok);
    }
    let (some, all) = (done.rotated, done.secrets);
    let key = sanitize::text(&done.key_id);
    terminal.say(&format!(
        "{some} of {all} were sealed anew; all are sealed with the key {key} now"
    ));
    Ok(Exit::Ok)
}
