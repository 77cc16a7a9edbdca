//! Whose socket it is that listens on a port (A46). A runner's port has no other protection: before
//! a word is said there, the listener must be the process that we started, or one of its own.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;

use crate::shim::tree;

/// As `/proc/net/tcp` writes that a socket listens.
const LISTENS: &str = "0A";
/// Bytes of a table that are looked at: some hundred thousand sockets.
const MAX_TABLE_BYTES: usize = 64 << 20;

/// Who listens on a port.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Listener {
    Nobody,
    /// The family of processes that was asked about, on the loopback, and nobody else.
    Ours,
    /// Somebody else.
    Foreign,
    /// Ours, but for everybody who reaches this machine (RQ-8).
    Open,
}

/// Who listens on this port, seen from the process `root` and its descendants.
pub(super) fn who(port: u16, root: i32) -> io::Result<Listener> {
    let mut sockets = Vec::new();
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        match fs::read_to_string(table) {
            Ok(text) if text.len() <= MAX_TABLE_BYTES => sockets.extend(listening(&text, port)),
            Ok(_) => return Err(io::Error::other("this machine has too many sockets")),
            // A machine without IPv6 has no table of it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    if sockets.is_empty() {
        return Ok(Listener::Nobody);
    }
    let family = tree::family(root);
    let held: HashSet<u64> = family.into_iter().flat_map(sockets_of).collect();
    if sockets.iter().any(|socket| !held.contains(&socket.inode)) {
        return Ok(Listener::Foreign);
    }
    match sockets.iter().all(|socket| socket.loopback) {
        true => Ok(Listener::Ours),
        false => Ok(Listener::Open),
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Socket {
    inode: u64,
    loopback: bool,
}

/// Sockets of a table that listen on the port.
fn listening(table: &str, port: u16) -> Vec<Socket> {
    let lines = table.lines().skip(1);
    lines.filter_map(|line| socket(line, port)).collect()
}

fn socket(line: &str, port: u16) -> Option<Socket> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (address, at) = fields.get(1)?.rsplit_once(':')?;
    let same = u16::from_str_radix(at, 16).ok()? == port;
    (same && *fields.get(3)? == LISTENS).then_some(())?;
    Some(Socket {
        inode: fields.get(9)?.parse().ok()?,
        loopback: is_loopback(address),
    })
}

/// Words of 32 bits in the machine's order.
fn is_loopback(address: &str) -> bool {
    let words = address.as_bytes().chunks(8).map(|word| {
        let word = std::str::from_utf8(word).ok()?;
        u32::from_str_radix(word, 16).ok().map(u32::to_ne_bytes)
    });
    let Some(words) = words.collect::<Option<Vec<[u8; 4]>>>() else {
        return false;
    };
    let bytes = words.concat();
    let ip = match <[u8; 4]>::try_from(&bytes[..]) {
        Ok(four) => std::net::IpAddr::from(four),
        Err(_) => match <[u8; 16]>::try_from(&bytes[..]) {
            Ok(sixteen) => std::net::IpAddr::from(sixteen),
            Err(_) => return false,
        },
    };
    ip.to_canonical().is_loopback()
}

/// The sockets a process has open. What cannot be looked at has none.
fn sockets_of(pid: i32) -> Vec<u64> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten();
    let links = entries
        .flatten()
        .filter_map(|it| fs::read_link(it.path()).ok());
    let inode = |link: std::path::PathBuf| {
        let text = link.as_os_str().as_bytes().strip_prefix(b"socket:[")?;
        std::str::from_utf8(text.strip_suffix(b"]")?)
            .ok()?
            .parse()
            .ok()
    };
    links.filter_map(inode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn me() -> i32 {
        rustix::process::getpid().as_raw_nonzero().get()
    }

    #[test]
    fn a_listener_is_known_by_its_process() {
        // A46
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(who(port, me()).unwrap(), Listener::Ours);
        let mut other = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let child = i32::try_from(other.id()).unwrap();
        assert_eq!(who(port, child).unwrap(), Listener::Foreign);
        other.kill().unwrap();
        other.wait().unwrap();
        drop(listener);
        assert_eq!(who(port, me()).unwrap(), Listener::Nobody);
    }

    #[test]
    fn a_listener_for_everybody_is_told_from_one_on_the_loopback() {
        // RQ-8
        for (address, wanted) in [
            ("0.0.0.0:0", Listener::Open),
            ("127.8.9.1:0", Listener::Ours),
            ("[::1]:0", Listener::Ours),
            ("[::]:0", Listener::Open),
        ] {
            let Ok(listener) = TcpListener::bind(address) else {
                assert!(address.starts_with('['), "only IPv6 may be missing");
                continue;
            };
            let port = listener.local_addr().unwrap().port();
            assert_eq!(who(port, me()).unwrap(), wanted, "{address}");
        }
    }
}
