//! What the names of servers of large files stand for: looked up once, judged, and gone to, so that
//! no name leads where its address could not.
//!
//! A proxy looks up names itself, and is somebody else's choice than the server's.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use delta_wire::places::is_never_a_server;
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use delta_git::RefusedAddress;

/// Where the environment names proxies, as the client reads it.
const PROXIES: [&str; 6] = [
    "http_proxy",
    "HTTP_PROXY",
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
];

pub(super) struct Names {
    /// The repository is on this machine itself.
    from_here: bool,
    /// The way out of here, which whoever runs this machine chose.
    proxies: BTreeSet<String>,
}

impl Names {
    pub fn new(from_here: bool) -> Names {
        let proxies = PROXIES.into_iter().filter_map(|name| {
            let text = std::env::var(name).ok()?;
            let url = Url::parse(&text).or_else(|_| Url::parse(&format!("http://{text}")));
            Some(url.ok()?.host_str()?.to_owned())
        });
        Names {
            from_here,
            proxies: proxies.collect(),
        }
    }
}

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        let (from_here, known) = (self.from_here, self.proxies.contains(name.as_str()));
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let found: Vec<SocketAddr> = if known {
                found.collect()
            } else {
                judged(found, from_here)?
            };
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Those that one may go to, or why that is none of them.
fn judged(
    found: impl Iterator<Item = SocketAddr>,
    from_here: bool,
) -> Result<Vec<SocketAddr>, RefusedAddress> {
    let (mut kept, mut refused) = (Vec::new(), None);
    for address in found {
        let ip = address.ip().to_canonical();
        if is_never_a_server(ip) {
            refused = Some(RefusedAddress::LinkLocal);
        } else if ip.is_loopback() && !from_here {
            refused = Some(RefusedAddress::Here);
        } else {
            kept.push(address);
        }
    }
    match refused.filter(|_| kept.is_empty()) {
        Some(refused) => Err(refused),
        None => Ok(kept),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // T17
    #[test]
    fn a_name_stands_for_no_address_that_could_not_be_named() {
        let judge = |texts: &[&str], from_here| {
            let found = texts
                .iter()
                .map(|it| SocketAddr::new(it.parse().unwrap(), 0));
            let judged = judged(found, from_here);
            judged.map(|all| all.iter().map(|it| it.ip().to_string()).collect::<Vec<_>>())
        };
        for never in [
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "fe80::1",
            "fd00:ec2::254",
            "100.100.100.200",
            "0.0.0.0",
        ] {
            assert_eq!(
                judge(&[never], true),
                Err(RefusedAddress::LinkLocal),
                "{never}"
            );
            let other = judge(&[never, "192.0.2.1"], true);
            assert_eq!(other, Ok(vec!["192.0.2.1".to_owned()]), "{never}");
        }
        for here in ["127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(judge(&[here], false), Err(RefusedAddress::Here), "{here}");
            assert_eq!(judge(&[here], true), Ok(vec![here.to_owned()]));
        }
        let inside = judge(&["10.0.0.1", "fd00::1"], false);
        assert_eq!(inside.map(|all| all.len()), Ok(2), "networks have servers");
    }
}
