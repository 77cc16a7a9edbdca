//! Which repositories and revisions git is told of at all: rules on text, before any process.
//!
//! What a run says of its source is a stranger's. A URL has one of few forms, nothing in it can be
//! taken for an option or for another transport, and it carries no password. Refs follow git's own
//! rules for names, commits are whole hashes.

use std::net::{IpAddr, Ipv6Addr};

use delta_wire::places::is_never_a_host;
use url::Url;

/// Longer than any clone URL, shorter than an argument may be.
const MAX_URL: usize = 2048;
/// Longer than any ref that a file system could hold.
const MAX_REF: usize = 1024;

/// What may be cloned from besides https and ssh.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Protocols {
    /// http to any host, in clear; without it to this machine only.
    pub http: bool,
    /// Repositories in this machine's file system.
    pub file: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    Https,
    Http,
    Ssh,
    File,
}

impl Protocol {
    /// As `GIT_ALLOW_PROTOCOL` spells it.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Https => "https",
            Protocol::Http => "http",
            Protocol::Ssh => "ssh",
            Protocol::File => "file",
        }
    }
}

/// Where a repository is, in words that git may be given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub url: String,
    pub protocol: Protocol,
    /// With its port, where one is named; empty for files.
    pub host: String,
}

/// Why git is not even asked: an address, a ref or a commit that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RefusedAddress {
    #[error("the repository's URL is too long, or has characters that no URL has")]
    Text,
    #[error("the repository's URL holds a password; name a secret as `checkout.credential`")]
    Password,
    #[error("the repository's URL names no host, or no path there")]
    Incomplete,
    #[error("repositories are cloned over https or ssh; {0} is not allowed on this agent")]
    Protocol(String),
    #[error("nothing is fetched from a link-local or metadata address, or one in an old spelling")]
    LinkLocal,
    #[error("another machine's files are not on this one")]
    Here,
    #[error("the ref is no name that git allows")]
    Ref,
    #[error("the commit is no hash of 40 or 64 hexadecimal digits")]
    Commit,
}

impl Address {
    pub fn parse(text: &str, allowed: Protocols) -> Result<Address, RefusedAddress> {
        let plain = |c: char| c.is_ascii_graphic() && !"\\\"'`<>{}|^$;*?#".contains(c);
        if text.len() > MAX_URL || text.starts_with('-') || !text.chars().all(plain) {
            return Err(RefusedAddress::Text);
        }
        if let Some((scheme, rest)) = text.split_once("://") {
            return with_scheme(text, scheme, rest, allowed);
        }
        // `ext::command`, `fd::7`: programs, not places.
        if let Some((transport, _)) = text.split_once("::") {
            return Err(RefusedAddress::Protocol(format!("`{transport}::`")));
        }
        match text.split_once(':') {
            Some((place, path)) if !place.contains('/') => short_ssh(text, place, path),
            _ => file(text, text, allowed),
        }
    }

    /// Whether it is on this machine.
    pub fn is_here(&self) -> bool {
        is_this_machine(&self.host)
    }

    /// What a credential for it is good for: this server and no other.
    pub fn server(&self) -> String {
        format!("{}://{}", self.protocol.name(), self.host)
    }
}

/// Where a repository's server may send us for a file.
#[derive(Debug, Clone, Copy)]
pub struct Redirection {
    pub protocols: Protocols,
    /// It is on this machine itself.
    pub from_here: bool,
}

/// The rules for repositories, and that a server elsewhere does not send us to this machine. The
/// path is that server's own, as is a signature in it.
pub fn check_redirection(url: &Url, away: Redirection) -> Result<(), RefusedAddress> {
    if !url.username().is_empty() || url.password().is_some() {
        return Err(RefusedAddress::Password);
    }
    let host = url.host_str().ok_or(RefusedAddress::Incomplete)?;
    let (name, _) = name_and_port(host)?;
    if is_never_a_host(name) {
        return Err(RefusedAddress::LinkLocal);
    }
    let here = is_this_machine(host);
    if here && !away.from_here {
        return Err(RefusedAddress::Here);
    }
    match url.scheme() {
        "https" => Ok(()),
        "http" if here || away.protocols.http => Ok(()),
        "http" => Err(RefusedAddress::Protocol(
            "http to other machines".to_owned(),
        )),
        other => Err(RefusedAddress::Protocol(format!("`{other}`"))),
    }
}

fn with_scheme(
    text: &str,
    scheme: &str,
    rest: &str,
    allowed: Protocols,
) -> Result<Address, RefusedAddress> {
    // Spelled as git's own list spells it; it compares letter by letter.
    let protocol = match scheme {
        "https" => Protocol::Https,
        "http" => Protocol::Http,
        "ssh" => Protocol::Ssh,
        "file" => return file(text, rest, allowed),
        _ => return Err(RefusedAddress::Protocol(format!("`{scheme}`"))),
    };
    let (place, path) = rest.split_once('/').ok_or(RefusedAddress::Incomplete)?;
    let host = host(place, protocol)?;
    if path.is_empty() {
        return Err(RefusedAddress::Incomplete);
    }
    if protocol == Protocol::Http && !allowed.http && !is_this_machine(host) {
        return Err(RefusedAddress::Protocol(
            "http to other machines".to_owned(),
        ));
    }
    Ok(Address {
        url: text.to_owned(),
        protocol,
        host: host.to_owned(),
    })
}

/// `git@host:path`.
fn short_ssh(text: &str, place: &str, path: &str) -> Result<Address, RefusedAddress> {
    let host = host(place, Protocol::Ssh)?;
    if path.is_empty() || path.starts_with('-') {
        return Err(RefusedAddress::Incomplete);
    }
    Ok(Address {
        url: text.to_owned(),
        protocol: Protocol::Ssh,
        host: host.to_owned(),
    })
}

fn file(text: &str, path: &str, allowed: Protocols) -> Result<Address, RefusedAddress> {
    if !allowed.file {
        return Err(RefusedAddress::Protocol(
            "a path of the file system".to_owned(),
        ));
    }
    if !path.starts_with('/') {
        return Err(RefusedAddress::Incomplete);
    }
    let url = if text.starts_with('/') {
        format!("file://{text}")
    } else {
        text.to_owned()
    };
    Ok(Address {
        url,
        protocol: Protocol::File,
        host: String::new(),
    })
}

/// The host of `user@host:port`, with its port.
fn host(place: &str, protocol: Protocol) -> Result<&str, RefusedAddress> {
    let (user, host) = match place.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, place),
    };
    let word = |c: char| c.is_ascii_alphanumeric() || "._-+".contains(c);
    if let Some(user) = user {
        if user.contains(':') {
            return Err(RefusedAddress::Password);
        }
        if user.is_empty() || user.starts_with('-') || !user.chars().all(word) {
            return Err(RefusedAddress::Text);
        }
    }
    let (name, port) = name_and_port(host)?;
    if protocol != Protocol::File && is_never_a_host(name) {
        return Err(RefusedAddress::LinkLocal);
    }
    if port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0)) {
        Ok(host)
    } else {
        Err(RefusedAddress::Incomplete)
    }
}

pub fn name_and_port(host: &str) -> Result<(&str, Option<&str>), RefusedAddress> {
    if let Some(rest) = host.strip_prefix('[') {
        let (name, port) = rest.split_once(']').ok_or(RefusedAddress::Incomplete)?;
        name.parse::<Ipv6Addr>()
            .map_err(|_| RefusedAddress::Incomplete)?;
        return match port.strip_prefix(':') {
            Some(port) => Ok((name, Some(port))),
            None if port.is_empty() => Ok((name, None)),
            None => Err(RefusedAddress::Incomplete),
        };
    }
    let (name, port) = match host.split_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (host, None),
    };
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || name.starts_with('-') || !name.chars().all(fits) {
        Err(RefusedAddress::Incomplete)
    } else {
        Ok((name, port))
    }
}

/// The numbers an address stands for, also one that IPv6 only wraps.
fn ip(name: &str) -> Option<IpAddr> {
    let ip = name.parse::<IpAddr>().ok()?;
    Some(ip.to_canonical())
}

fn is_this_machine(host: &str) -> bool {
    let name = name_and_port(host).map(|(name, _)| name);
    let named = |name: &str| name.trim_end_matches('.') == "localhost";
    name.is_ok_and(|name| named(name) || ip(name).is_some_and(|ip| ip.is_loopback()))
}

/// The rules of `git check-ref-format`, and that no program takes it for an option.
pub fn check_ref(name: &str) -> Result<(), RefusedAddress> {
    let bad = |c: char| c.is_control() || " ~^:?*[\\".contains(c);
    let part = |part: &str| part.is_empty() || part.starts_with('.') || part.ends_with(".lock");
    let wrong = name.is_empty()
        || name.len() > MAX_REF
        || name == "@"
        || name.starts_with('-')
        || name.ends_with('.')
        || name.contains("..")
        || name.contains("@{")
        || name.chars().any(bad)
        || name.split('/').any(part);
    if wrong {
        Err(RefusedAddress::Ref)
    } else {
        Ok(())
    }
}

/// A whole hash, in the letters that git prints.
pub fn check_commit(text: &str) -> Result<String, RefusedAddress> {
    let whole = matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if whole {
        Ok(text.to_ascii_lowercase())
    } else {
        Err(RefusedAddress::Commit)
    }
}

#[cfg(test)]
mod tests {
    use delta_testkit::git::hostile::{HOSTILE_REFS, HOSTILE_URLS};

    use super::*;

    const NOTHING: Protocols = Protocols {
        http: false,
        file: false,
    };

    #[test]
    fn usual_addresses_are_understood() {
        let read = |text: &str| Address::parse(text, NOTHING).expect(text);
        let github = read("https://github.com/acme/app.git");
        assert_eq!(github.protocol, Protocol::Https);
        assert_eq!(github.server(), "https://github.com");
        assert_eq!(read("https://me@host:8443/a").server(), "https://host:8443");
        assert_eq!(
            read("git@host.example:acme/app.git").protocol,
            Protocol::Ssh
        );
        assert_eq!(read("https://9git/a").host, "9git");
        assert_eq!(read("ssh://git@host:2222/a.git").host, "host:2222");
        assert_eq!(
            read("ssh://git@[2001:db8::1]:22/a").host,
            "[2001:db8::1]:22"
        );
        for here in ["127.0.0.1:8080", "localhost", "[::1]:80"] {
            read(&format!("http://{here}/a.git"));
        }
    }

    // EP-19, T14, T17
    #[test]
    fn hostile_urls_are_refused() {
        for url in HOSTILE_URLS {
            let refused = Address::parse(url, NOTHING);
            assert!(refused.is_err(), "{url}: {refused:?}");
        }
    }

    #[test]
    fn settings_allow_http_and_files() {
        let all = Protocols {
            http: true,
            file: true,
        };
        for url in ["http://git.example/a", "file:///srv/a.git", "/srv/a.git"] {
            assert!(Address::parse(url, NOTHING).is_err());
            assert!(Address::parse(url, all).is_ok(), "{url}");
        }
        for url in ["srv/a.git", "file://host/a", "./a", "ext::sh"] {
            assert!(Address::parse(url, all).is_err(), "{url}");
        }
    }

    // T17
    #[test]
    fn a_server_sends_us_to_nowhere_that_a_run_may_not_name() {
        let check = |text: &str, from_here: bool, http: bool| {
            let protocols = Protocols { http, file: true };
            let url = Url::parse(text).expect(text);
            check_redirection(
                &url,
                Redirection {
                    protocols,
                    from_here,
                },
            )
        };
        let signed = "https://store.example/a/b?sig=a%2Fb&x=1;2*$'(3)#z";
        assert_eq!(check(signed, false, false), Ok(()));
        for (url, from_here, http) in [
            ("http://store.example/a", false, true),
            ("http://127.0.0.1:8080/a", true, false),
            ("https://[2001:db8::1]:8443/a", false, false),
        ] {
            assert_eq!(check(url, from_here, http), Ok(()), "{url}");
        }
        for url in [
            "http://store.example/a",
            "ftp://store.example/a",
            "file:///etc/passwd",
            "https://me:secret@store.example/a",
            "https://169.254.169.254/latest",
            "https://0xa9fea9fe/latest",
            "https://2852039166/latest",
            "https://[::ffff:169.254.169.254]/latest",
            "https://[fe80::1]/a",
            "https://[fd00:ec2::254]/latest",
            "https://100.100.100.200/latest",
            "https://127.0.0.1/a",
            "http://localhost/a",
            "http://LOCALHOST./a",
            "https://[::1]/a",
            "https://0.0.0.0/a",
        ] {
            assert!(check(url, false, false).is_err(), "{url}");
        }
        assert!(check("http://169.254.169.254/a", true, true).is_err());
    }

    // T14
    #[test]
    fn hostile_refs_and_commits_are_refused() {
        for name in HOSTILE_REFS {
            assert_eq!(check_ref(name), Err(RefusedAddress::Ref), "{name}");
        }
        for name in [
            "main",
            "refs/heads/a-b",
            "refs/pull/1/head",
            "v1.0",
            "$(id)",
        ] {
            assert_eq!(check_ref(name), Ok(()), "{name}");
        }
        let hash = "0123456789abcdef0123456789ABCDEF01234567";
        assert_eq!(check_commit(hash), Ok(hash.to_ascii_lowercase()));
        for commit in [
            "",
            "main",
            &hash[1..],
            "--upload-pack=id",
            &format!("{hash}0"),
        ] {
            assert_eq!(
                check_commit(commit),
                Err(RefusedAddress::Commit),
                "{commit}"
            );
        }
    }
}
