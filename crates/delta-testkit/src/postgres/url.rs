//! Just enough of a PostgreSQL URL to exchange its database or its address.
//!
//! `postgres://user:password@host:port/database?options`; everything not exchanged is kept as it
//! is. Knows no key-value strings and no lists of hosts.

use std::net::{SocketAddr, ToSocketAddrs};

use anyhow::{Context, Result, bail};

const DEFAULT_PORT: u16 = 5432;

struct Parts<'a> {
    scheme: &'a str,
    /// With the `@`, or empty.
    user: &'a str,
    host: &'a str,
    database: &'a str,
    /// With the `?`, or empty.
    options: &'a str,
}

pub(super) fn with_database(url: &str, database: &str) -> Result<String> {
    let Parts {
        scheme,
        user,
        host,
        options,
        ..
    } = parse(url)?;
    Ok(format!("{scheme}://{user}{host}/{database}{options}"))
}

pub(super) fn with_addr(url: &str, addr: SocketAddr) -> Result<String> {
    let Parts {
        scheme,
        user,
        database,
        options,
        ..
    } = parse(url)?;
    Ok(format!("{scheme}://{user}{addr}/{database}{options}"))
}

pub(super) fn addr(url: &str) -> Result<SocketAddr> {
    let host = parse(url)?.host;
    let with_port = if host
        .rsplit(':')
        .next()
        .is_some_and(|port| port.parse::<u16>().is_ok())
    {
        host.to_owned()
    } else {
        format!("{host}:{DEFAULT_PORT}")
    };
    let mut found = with_port
        .to_socket_addrs()
        .with_context(|| format!("the address of {with_port}"))?;
    found
        .next()
        .with_context(|| format!("{with_port} has no address"))
}

fn parse(url: &str) -> Result<Parts<'_>> {
    // The URL may hold a password: errors do not repeat it.
    let Some((scheme, rest)) = url.split_once("://") else {
        bail!("a PostgreSQL URL starts with postgres://");
    };
    let (rest, options) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
    let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
    let user_end = authority.rfind('@').map_or(0, |at| at + 1);
    let (user, host) = authority.split_at(user_end);
    Ok(Parts {
        scheme,
        user,
        host,
        database,
        options,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "postgres://me:p@localhost:6000/first?application_name=x";

    #[test]
    fn the_database_is_exchanged_and_the_rest_is_kept() {
        let found = with_database(URL, "second").unwrap();
        assert_eq!(
            found,
            "postgres://me:p@localhost:6000/second?application_name=x"
        );
        assert_eq!(
            with_database("postgres://h", "d").unwrap(),
            "postgres://h/d"
        );
    }

    #[test]
    fn the_address_is_exchanged_and_the_rest_is_kept() {
        let proxy = SocketAddr::from(([127, 0, 0, 1], 7));
        let found = with_addr(URL, proxy).unwrap();
        assert_eq!(
            found,
            "postgres://me:p@127.0.0.1:7/first?application_name=x"
        );
    }

    #[test]
    fn a_missing_port_is_the_usual_one() {
        assert_eq!(addr("postgres://u@127.0.0.1/d").unwrap().port(), 5432);
        assert_eq!(addr("postgres://u@127.0.0.1:99/d").unwrap().port(), 99);
    }
}
