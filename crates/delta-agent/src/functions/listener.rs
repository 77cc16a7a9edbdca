//! Whose socket it is that listens on a port, or that took a connection there (A46). A runner's
//! port has no other protection: before a word is said, the process at the other end must be the
//! one that we started, or one of its own. A listener ends before its process does, and then the
//! port is anybody's: so every connection is looked at, and not the first alone.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;

use crate::shim::tree;

const TABLES: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
/// As they write that a socket listens, that it is connected, and that it is about to.
const LISTENS: &str = "0A";
const CONNECTED: &str = "01";
const CONNECTING: &str = "03";
/// Bytes of a table that are looked at: some hundred thousand sockets.
const MAX_TABLE_BYTES: usize = 64 << 20;

/// Who is at the other end.
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

/// A process, told from a later one of the same number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    pub pid: u32,
    born: u64,
}

impl Owner {
    pub fn of(pid: u32) -> io::Result<Owner> {
        let born = born(pid).ok_or(io::ErrorKind::NotFound)?;
        Ok(Owner { pid, born })
    }

    /// The sockets that it and its descendants have open; none once it is gone.
    fn sockets(self) -> HashSet<u64> {
        let family = tree::family(i32::try_from(self.pid).unwrap_or(0));
        let held: HashSet<u64> = family.into_iter().flat_map(sockets_of).collect();
        match born(self.pid) == Some(self.born) {
            true => held,
            false => HashSet::new(),
        }
    }
}

/// Who listens on this port, seen from a process and its descendants.
pub(super) fn who(port: u16, owner: Owner) -> io::Result<Listener> {
    let mut all = Vec::new();
    for table in TABLES {
        all.extend(rows(table, port)?);
    }
    Ok(listener(&all, owner))
}

/// Who took, or is about to take, the connection from `here` to `there`.
pub(super) fn whose(here: SocketAddr, there: SocketAddr, owner: Owner) -> io::Result<Listener> {
    // The machine walks through all it has for each table: the second is read only where the first
    // has nothing. A connection and whoever listens for it are in the same one.
    for table in TABLES {
        let rows = rows(table, there.port())?;
        let mut ends = rows.iter();
        let Some(end) = ends.find(|row| row.local == there && row.remote == here) else {
            continue;
        };
        return Ok(match (end.inode, end.state.as_str()) {
            // Nobody has accepted it: it belongs to the socket that listens, and ends with it.
            (0, CONNECTED | CONNECTING) => listener(&rows, owner),
            (0, _) => Listener::Nobody,
            (inode, _) if owner.sockets().contains(&inode) => Listener::Ours,
            _ => Listener::Foreign,
        });
    }
    Ok(Listener::Nobody)
}

fn listener(rows: &[Row], owner: Owner) -> Listener {
    let listening = || rows.iter().filter(|row| row.state == LISTENS);
    if listening().next().is_none() {
        return Listener::Nobody;
    }
    let held = owner.sockets();
    if listening().any(|row| !held.contains(&row.inode)) {
        return Listener::Foreign;
    }
    match listening().all(|row| row.local.ip().is_loopback()) {
        true => Listener::Ours,
        false => Listener::Open,
    }
}

/// One socket of a table.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    local: SocketAddr,
    remote: SocketAddr,
    state: String,
    /// 0 while it is no process's.
    inode: u64,
}

/// Every socket of a table whose own end is this port.
fn rows(table: &str, port: u16) -> io::Result<Vec<Row>> {
    match fs::read_to_string(table) {
        Ok(text) if text.len() <= MAX_TABLE_BYTES => {
            let all = text.lines().skip(1).filter_map(row);
            Ok(all.filter(|row| row.local.port() == port).collect())
        }
        Ok(_) => Err(io::Error::other("this machine has too many sockets")),
        // A machine without IPv6 has no table of it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn row(line: &str) -> Option<Row> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    Some(Row {
        local: address(fields.next()?)?,
        remote: address(fields.next()?)?,
        state: fields.next()?.to_owned(),
        inode: fields.nth(5)?.parse().ok()?,
    })
}

/// Words of 32 bits in the machine's order. An IPv4 address within IPv6 is that address.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.rsplit_once(':')?;
    let word = |word: &[u8]| {
        let word = std::str::from_utf8(word).ok()?;
        u32::from_str_radix(word, 16).ok().map(u32::to_ne_bytes)
    };
    let words = ip.as_bytes().chunks(8).map(word);
    let bytes = words.collect::<Option<Vec<[u8; 4]>>>()?.concat();
    let ip = match <[u8; 4]>::try_from(&bytes[..]) {
        Ok(four) => IpAddr::from(four),
        Err(_) => IpAddr::from(<[u8; 16]>::try_from(&bytes[..]).ok()?),
    };
    let port = u16::from_str_radix(port, 16).ok()?;
    Some(SocketAddr::new(ip.to_canonical(), port))
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

/// When a process began, in ticks since the machine did: the 22nd field, counted behind the name,
/// which may itself contain blanks and brackets.
fn born(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let (_, behind) = stat.rsplit_once(')')?;
    behind.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::process::{Child, Command};

    fn me() -> Owner {
        Owner::of(std::process::id()).unwrap()
    }

    /// A process that has nothing of ours.
    struct Other(Child);

    impl Other {
        fn start() -> (Other, Owner) {
            let child = Command::new("sleep").arg("60").spawn().unwrap();
            let owner = Owner::of(child.id()).unwrap();
            (Other(child), owner)
        }
    }

    impl Drop for Other {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_listener_is_known_by_its_process() {
        // A46
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(who(port, me()).unwrap(), Listener::Ours);
        let (_other, owner) = Other::start();
        assert_eq!(who(port, owner).unwrap(), Listener::Foreign);
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

    #[test]
    fn a_connection_is_known_by_whoever_took_it_and_before_that_by_who_listens() {
        // A46
        for address in ["127.0.0.1:0", "[::ffff:127.0.0.1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                assert!(address.starts_with('['), "only IPv6 may be missing");
                continue;
            };
            let port = listener.local_addr().unwrap().port();
            let there = SocketAddr::from(([127, 0, 0, 1], port));
            let stream = TcpStream::connect(there).unwrap();
            let here = stream.local_addr().unwrap();
            let (_other, owner) = Other::start();
            let found = |owner| whose(here, there, owner).unwrap();
            assert_eq!(found(me()), Listener::Ours, "in its queue");
            assert_eq!(found(owner), Listener::Foreign, "in somebody's queue");
            let taken = listener.accept().unwrap();
            // Whoever listens there by now, the connection stays where it is.
            drop(listener);
            assert_eq!(found(me()), Listener::Ours, "taken");
            assert_eq!(found(owner), Listener::Foreign, "taken by somebody");
            drop(taken);
            assert_eq!(found(me()), Listener::Nobody, "closed");
        }
    }

    #[test]
    fn a_later_process_of_the_same_number_is_another() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let before = Owner {
            born: me().born - 1,
            ..me()
        };
        assert_eq!(who(port, before).unwrap(), Listener::Foreign);
    }
}
