//! Whose socket it is that listens on a port, or that took a connection there (A46). A runner's
//! port has no other protection: before a word is said, the process at the other end must be the
//! one that we started, or one of its own. A listener ends before its process does, and then the
//! port is anybody's: so every connection is looked at, and not the first alone.

use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, io};

use delta_shim::processes::tree;

use super::tcp_sockets::{self, FarEnd, Listening, far_end};

/// Parents that are looked through from a process to the one that we started.
const MAX_DEPTH: usize = 32;

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

/// A process with its descendants, told from a later one of the same number.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    pub pid: u32,
    born: u64,
    /// Who of them had the socket that was last asked about: mostly the same one.
    holder: Arc<AtomicU32>,
}

impl Owner {
    pub fn of(pid: u32) -> io::Result<Owner> {
        let (_, born) = stat(pid).ok_or(io::ErrorKind::NotFound)?;
        let holder = Arc::new(AtomicU32::new(pid));
        Ok(Owner { pid, born, holder })
    }

    /// Whether one of them has this socket open.
    fn has(&self, inode: u64) -> bool {
        let lives = || stat(self.pid).is_some_and(|(_, born)| born == self.born);
        let has = |pid: u32| sockets_of(pid).contains(&inode);
        let known = self.holder.load(Ordering::Relaxed);
        // In this order: whoever has that number by now is judged by its own parents.
        if has(known) && self.is_above(known) && lives() {
            return true;
        }
        // The machine is looked through from end to end.
        let family = tree::family(i32::try_from(self.pid).unwrap_or(0));
        let mut family = family.into_iter().filter_map(|pid| u32::try_from(pid).ok());
        let Some(found) = family.find(|pid| has(*pid)).filter(|_| lives()) else {
            return false;
        };
        self.holder.store(found, Ordering::Relaxed);
        true
    }

    fn is_above(&self, mut pid: u32) -> bool {
        for _ in 0..MAX_DEPTH {
            if pid == self.pid {
                return true;
            }
            match stat(pid) {
                Some((parent, _)) => pid = parent,
                None => return false,
            }
        }
        false
    }
}

/// Who listens on this port, seen from a process and its descendants.
pub(super) fn who(port: u16, owner: &Owner) -> io::Result<Listener> {
    who_of(&tcp_sockets::listening(port)?, owner)
}

fn who_of(all: &[Listening], owner: &Owner) -> io::Result<Listener> {
    if all.is_empty() {
        return Ok(Listener::Nobody);
    }
    if !all.iter().all(|it| owner.has(it.inode)) {
        return Ok(Listener::Foreign);
    }
    Ok(if all.iter().all(|it| it.address.ip().is_loopback()) {
        Listener::Ours
    } else {
        Listener::Open
    })
}

/// Who took, or is about to take, the connection from `here` to `there`.
pub(super) fn whose(here: SocketAddr, there: SocketAddr, owner: &Owner) -> io::Result<Listener> {
    let taken = |end: Option<FarEnd>| match end {
        Some(FarEnd::Taken(inode)) if owner.has(inode) => Some(Listener::Ours),
        Some(FarEnd::Taken(_)) => Some(Listener::Foreign),
        Some(FarEnd::Queued) => None,
        Some(FarEnd::Closed) | None => Some(Listener::Nobody),
    };
    if let Some(found) = taken(far_end(here, there)?) {
        return Ok(found);
    }
    // Whoever has the same port of another address gets no connection to this one.
    let mut all = tcp_sockets::listening(there.port())?;
    all.retain(|it| {
        let ip = it.address.ip().to_canonical();
        ip.is_unspecified() || ip == there.ip().to_canonical()
    });
    let listener = who_of(&all, owner)?;
    // It ends with the listener in whose queue it is, so that one is there still; or somebody took
    // it meanwhile.
    Ok(taken(far_end(here, there)?).unwrap_or(listener))
}

/// The sockets a process has open. What cannot be looked at has none.
fn sockets_of(pid: u32) -> Vec<u64> {
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

/// The parent of a process, and when it began, in ticks since the machine did: the 4th and the 22nd
/// field, counted behind the name, which may itself contain blanks and brackets.
fn stat(pid: u32) -> Option<(u32, u64)> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let (_, behind) = stat.rsplit_once(')')?;
    let mut fields = behind.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    Some((parent, fields.nth(17)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::{TcpListener, TcpStream};
    use std::process::{Child, Command, Stdio};

    use super::*;

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
        assert_eq!(who(port, &me()).unwrap(), Listener::Ours);
        let (_other, owner) = Other::start();
        assert_eq!(who(port, &owner).unwrap(), Listener::Foreign);
        drop(listener);
        assert_eq!(who(port, &me()).unwrap(), Listener::Nobody);
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
            assert_eq!(who(port, &me()).unwrap(), wanted, "{address}");
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
            let found = |owner: &Owner| whose(here, there, owner).unwrap();
            assert_eq!(found(&me()), Listener::Ours, "in its queue");
            assert_eq!(found(&owner), Listener::Foreign, "in somebody's queue");
            let taken = listener.accept().unwrap();
            // Whoever listens there by now, the connection stays where it is.
            drop(listener);
            assert_eq!(found(&me()), Listener::Ours, "taken");
            assert_eq!(found(&owner), Listener::Foreign, "taken by somebody");
            drop(taken);
            assert_eq!(found(&me()), Listener::Nobody, "closed");
        }
    }

    #[test]
    fn whoever_has_the_same_port_of_another_address_is_not_asked() {
        let program = "import socket, time\n\
            listener = socket.create_server(('127.0.0.1', 0))\n\
            print(listener.getsockname()[1], flush=True)\n\
            time.sleep(60)";
        let mut command = Command::new("python3");
        command.args(["-c", program]).stdout(Stdio::piped());
        let mut runner = Other(command.spawn().unwrap());
        let owner = Owner::of(runner.0.id()).unwrap();
        let mut said = String::new();
        let out = runner.0.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut said).unwrap();
        let port: u16 = said.trim().parse().unwrap();
        let _other = TcpListener::bind(("127.0.0.2", port)).unwrap();
        assert_eq!(who(port, &owner).unwrap(), Listener::Foreign);
        let there = SocketAddr::from(([127, 0, 0, 1], port));
        let stream = TcpStream::connect(there).unwrap();
        let here = stream.local_addr().unwrap();
        assert_eq!(whose(here, there, &owner).unwrap(), Listener::Ours);
    }

    #[test]
    fn a_later_process_of_the_same_number_is_another() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let before = Owner {
            born: me().born - 1,
            ..me()
        };
        assert_eq!(who(port, &before).unwrap(), Listener::Foreign);
    }
}
