//! What the names of forges stand for: looked up once, judged, and gone to, so that no name leads
//! where its address could not. Owns no rule of its own: whoever makes the client brings it.

use std::io;
use std::net::{IpAddr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Whether nothing of ours ever goes to that address.
pub type Never = fn(IpAddr) -> bool;

pub(crate) struct Hosts {
    pub never: Never,
}

impl Resolve for Hosts {
    fn resolve(&self, name: Name) -> Resolving {
        let never = self.never;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let kept: Vec<SocketAddr> = found.filter(|found| !never(found.ip())).collect();
            if kept.is_empty() {
                Err(io::Error::other("the name stands for no address of a server").into())
            } else {
                Ok(Box::new(kept.into_iter()) as Addrs)
            }
        })
    }
}
