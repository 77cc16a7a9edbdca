//! Large files of a repository that is reached by ssh: its server is asked over ssh where they are
//! and what opens them. Everything after that is HTTP, as with any other.

use std::collections::BTreeMap;

use serde::Deserialize;

use delta_git::{Address, Call, Git, GitError, Loan, RefusedAddress, name_and_port};

use super::super::{Checkout, CheckoutError};

/// Where the server is asked for files, and what it wants to see.
#[derive(Debug, Deserialize)]
pub(super) struct Granted {
    pub href: String,
    #[serde(default)]
    pub header: BTreeMap<String, String>,
}

/// Asks the server. It knows the key that was lent.
pub(super) async fn ask(
    checkout: &Checkout<'_>,
    git: &Git<'_>,
    address: &Address,
    loan: &Loan,
) -> Result<Granted, CheckoutError> {
    let (mut arguments, path) = target(address)?;
    // Nothing in a path that was checked ends the quotes.
    arguments.push(format!("git-lfs-authenticate '{path}' download"));
    let asked = git.call(Call::over_ssh(checkout.tmp, arguments, loan));
    let said = asked.await.map_err(|error| match error {
        GitError::Ended { last, .. } => {
            let last = last.last().map_or("nothing", String::as_str);
            CheckoutError::Lfs(format!("their server says over ssh: {last}"))
        }
        other => other.into(),
    })?;
    let read = serde_json::from_slice(&said);
    read.map_err(|_| CheckoutError::Lfs("their server's answer over ssh cannot be read".to_owned()))
}

/// What ssh is told to go to, and the repository there.
fn target(address: &Address) -> Result<(Vec<String>, String), RefusedAddress> {
    let (place, path) = match address.url.strip_prefix("ssh://") {
        Some(rest) => {
            let (place, path) = rest.split_once('/').ok_or(RefusedAddress::Incomplete)?;
            (place, format!("/{path}"))
        }
        None => {
            let (place, path) = address
                .url
                .split_once(':')
                .ok_or(RefusedAddress::Incomplete)?;
            (place, path.to_owned())
        }
    };
    let user = place.rsplit_once('@').map(|(user, _)| format!("{user}@"));
    let (name, port) = name_and_port(&address.host)?;
    let mut arguments = Vec::new();
    if let Some(port) = port {
        arguments.extend(["-p".to_owned(), port.to_owned()]);
    }
    arguments.push(format!("{}{name}", user.unwrap_or_default()));
    Ok((arguments, path))
}

#[cfg(test)]
mod tests {
    use delta_git::Protocols;

    use super::*;

    #[test]
    fn ssh_is_told_the_place_and_the_server_the_path() {
        for (url, arguments, path) in [
            (
                "git@host.example:acme/app.git",
                vec!["git@host.example"],
                "acme/app.git",
            ),
            (
                "ssh://git@host:2222/a.git",
                vec!["-p", "2222", "git@host"],
                "/a.git",
            ),
            ("ssh://[2001:db8::1]/a", vec!["2001:db8::1"], "/a"),
        ] {
            let address = Address::parse(url, Protocols::default()).expect(url);
            let target = target(&address).expect(url);
            assert_eq!(
                target,
                (
                    arguments.iter().map(|it| it.to_string()).collect(),
                    path.to_owned()
                )
            );
        }
    }
}
