//! `delta-ci repo`: register, list and remove repositories. A webhook's secret comes from standard
//! input or a file, never from an argument, and is never shown again.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use delta_wire::api::{ForgeName, ForkPolicy, PutRepository, RepositoryView};

use super::token::path_part;
use crate::client::connect::{self, NoStore};
use crate::client::{self, Client, Target};
use crate::columns;
use crate::exit::Exit;
use crate::failure::{Done, Failure};
use crate::sanitize;
use crate::secret_input;
use crate::table::{self, Cell};
use crate::terminal::Terminal;

const ADD_EXAMPLES: &str = "\
Examples:
  openssl rand -hex 32 > hook.secret
  delta-ci repo add app --url https://github.com/team/app.git --forge github \\
      --token STATUS_TOKEN --webhook-secret-file hook.secret
  delta-ci repo add app --url https://forge.example/team/app.git --forge forgejo \\
      --token STATUS_TOKEN --credential CLONE --forks run --webhook-secret-file hook.secret

Names of secrets: STATUS_TOKEN may write statuses, CLONE may clone. Set them first:
  delta-ci secret set STATUS_TOKEN --kind token --file token

Then let the forge deliver pushes and pull requests, as JSON, with the same secret, to the address
that is printed. Adding a repository again changes what is named, and keeps the rest. To take
something away from it, remove it and add it anew.";

const LIST_EXAMPLES: &str = "\
Examples:
  delta-ci repo list
  delta-ci repo list --json | jq -r '.[].webhook_path'";

const RM_EXAMPLES: &str = "\
Examples:
  delta-ci repo remove app             its deliveries are refused from then on; its runs stay";

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Register a repository, or change it
    #[command(after_help = ADD_EXAMPLES)]
    Add(Box<Add>),
    /// List repositories
    #[command(after_help = LIST_EXAMPLES)]
    List(List),
    /// Remove a repository
    #[command(after_help = RM_EXAMPLES, visible_alias = "rm")]
    Remove(Remove),
}

#[derive(Debug, clap::Args)]
struct Add {
    /// Small letters, digits, `-`, `_` and `.`
    name: String,
    /// What is cloned: https, or ssh with a credential
    #[arg(long, value_name = "URL")]
    url: String,
    #[arg(long)]
    forge: Forge,
    /// The forge's API [default: told from the URL]
    #[arg(long, value_name = "URL")]
    api: Option<String>,
    /// The repository's name at the forge [default: told from the URL]
    #[arg(long, value_name = "OWNER/NAME")]
    project: Option<String>,
    /// The secret that may write statuses; without it none are published
    #[arg(long, value_name = "SECRET")]
    token: Option<String>,
    /// The secret that it is cloned with
    #[arg(long, value_name = "SECRET")]
    credential: Option<String>,
    /// The file with the webhook's secret, at least 16 characters; `-` is standard input
    #[arg(long, value_name = "FILE")]
    webhook_secret_file: Option<PathBuf>,
    /// What becomes of pull requests from other repositories; they never get secrets
    /// [default: approve]
    #[arg(long, value_name = "POLICY")]
    forks: Option<Forks>,
    /// Let older runs of a pull request go on when it has a newer head
    #[arg(long)]
    no_supersede: bool,
    /// End them, where a repository was added with --no-supersede
    #[arg(long, conflicts_with = "no_supersede")]
    supersede: bool,
    /// Who is told about the end of each run, by a webhook signed with --notify-secret
    #[arg(long, value_name = "URL", requires = "notify_secret")]
    notify_url: Option<String>,
    #[arg(long, value_name = "SECRET", requires = "notify_url")]
    notify_secret: Option<String>,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, clap::Args)]
struct List {
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, clap::Args)]
struct Remove {
    name: String,
    #[command(flatten)]
    target: Target,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Forge {
    Github,
    Gitea,
    Forgejo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Forks {
    /// Somebody must let each of them go on: delta-ci approve RUN
    Approve,
    /// They run, untrusted
    Run,
    /// They start nothing
    Ignore,
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    match args.action {
        Action::Add(args) => add(*args, terminal).await,
        Action::List(args) => {
            client::reading(&args.target, async |client| list(client, terminal).await).await
        }
        Action::Remove(args) => {
            client::with(&args.target, async |client| {
                client
                    .delete(&format!("/api/v1/repositories/{}", path_part(&args.name)))
                    .await?;
                if terminal.json {
                    terminal.value(&serde_json::json!({ "name": args.name, "removed": true }))
                } else {
                    terminal.say(&format!("{} is removed", sanitize::text(&args.name)))
                }
                Ok(Exit::Ok)
            })
            .await
        }
    }
}

async fn add(args: Add, terminal: &Terminal) -> Done {
    let file = args.webhook_secret_file.as_deref();
    let webhook_secret = match file {
        None => None,
        Some(path) => {
            let file = Some(path).filter(|path| path.as_os_str() != "-");
            let again = "write the secret into the file of --webhook-secret-file";
            Some(secret_input::value(file, again, terminal)?)
        }
    };
    let request = PutRepository {
        name: args.name,
        clone_url: args.url,
        forge: match args.forge {
            Forge::Github => ForgeName::Github,
            Forge::Gitea => ForgeName::Gitea,
            Forge::Forgejo => ForgeName::Forgejo,
        },
        api: args.api,
        project: args.project,
        token: args.token,
        credential: args.credential,
        webhook_secret,
        forks: args.forks.map(|it| match it {
            Forks::Approve => ForkPolicy::Approve,
            Forks::Run => ForkPolicy::Run,
            Forks::Ignore => ForkPolicy::Ignore,
        }),
        supersede: match (args.supersede, args.no_supersede) {
            (false, false) => None,
            (supersede, _) => Some(supersede),
        },
        notify_url: args.notify_url,
        notify_secret: args.notify_secret,
    };
    // The first repository may be registered before the first start.
    connect::reach(&args.target, NoStore::Make, async |client: &Client| {
        let added = client.post_text("/api/v1/repositories", &request).await;
        let text = added.map_err(flagged)?;
        let view: RepositoryView = client::read(&text)?;
        if terminal.json {
            terminal.value(&view)
        } else {
            let name = sanitize::text(&view.name);
            let address = match view.webhook_url {
                Some(url) => url,
                None => format!("SERVER{}", view.webhook_path),
            };
            terminal.say(&format!(
                "{name} is registered; its forge delivers to {}",
                sanitize::text(&address)
            ));
            for warning in &view.warnings {
                terminal.say(&format!("warning: {}", sanitize::text(warning)));
            }
        }
        Ok(Exit::Ok)
    })
    .await
}

/// The flag behind the field that a server speaks of.
fn flagged(failure: Failure) -> Failure {
    const FLAGS: [(&str, &str); 10] = [
        ("project", "--project OWNER/NAME"),
        ("clone_url", "--url URL"),
        ("api", "--api URL"),
        ("token", "--token SECRET"),
        ("credential", "--credential SECRET"),
        ("webhook_secret", "--webhook-secret-file FILE"),
        ("forks", "--forks POLICY"),
        ("notify_url", "--notify-url URL"),
        ("notify_secret", "--notify-secret SECRET"),
        ("forge", "--forge FORGE"),
    ];
    let said = |field: &str| {
        let named = failure.why.as_deref() == Some(&format!("field {field}"));
        named || failure.what.starts_with(&format!("{field}:"))
    };
    match FLAGS.iter().find(|(field, _)| said(field)) {
        Some((_, flag)) if failure.next.is_none() => failure.next(*flag),
        _ => failure,
    }
}

async fn list(client: &Client, terminal: &Terminal) -> Done {
    let text = client.get_text("/api/v1/repositories").await?;
    if terminal.json {
        terminal.value(&client::read::<serde_json::Value>(&text)?);
        return Ok(Exit::Ok);
    }
    let repositories: Vec<RepositoryView> = client::read(&text)?;
    if repositories.is_empty() {
        terminal.say("no repositories");
        return Ok(Exit::Ok);
    }
    let rows: Vec<Vec<Cell>> = repositories
        .iter()
        .map(|it| {
            let statuses = it.token.as_deref().unwrap_or("none");
            vec![
                Cell::from(sanitize::text(&it.name)),
                Cell::from(it.forge.as_str()),
                Cell::from(sanitize::text(&it.clone_url)),
                Cell::from(sanitize::text(statuses)),
                Cell::from(it.forks.as_str()),
                Cell::from(sanitize::text(&it.webhook_path)),
            ]
        })
        .collect();
    table::show(terminal, &columns::REPOSITORIES, &rows);
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_of_a_field_names_the_flag() {
        let said = Failure::new(Exit::Usage, "project: cannot be told");
        assert_eq!(flagged(said).next.as_deref(), Some("--project OWNER/NAME"));
        let said = Failure::new(Exit::Usage, "is no address").because("field clone_url");
        assert_eq!(flagged(said).next.as_deref(), Some("--url URL"));
        assert_eq!(flagged(Failure::new(Exit::Usage, "else")).next, None);
    }
}
