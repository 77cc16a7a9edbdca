//! The TCP sockets of this machine, as the kernel tells them. It is asked for the one that is
//! meant, by netlink; where that is not to be had, its tables are read, which it walks through from
//! end to end each time.
//!
//! Says what there is. Whose it is, is judged elsewhere.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::{fs, io};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

const TABLES: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
/// Bytes of a table that are looked at: some hundred thousand sockets.
const MAX_TABLE_BYTES: usize = 64 << 20;

/// States of a socket, in the kernel's numbers.
const CONNECTED: u8 = 1;
const CONNECTING: u8 = 3;
const LISTENS: u8 = 10;

/// Messages of netlink: kinds, flags, and how long they are.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const REQUEST: u16 = 0x001;
const DUMP: u16 = 0x300;
const INTERRUPTED: u16 = 0x010;
const HEADER: usize = 16;
/// Where things are in what it says of a socket.
const FAMILY_AT: usize = 0;
const STATE_AT: usize = 1;
const PORT_AT: usize = 4;
const ADDRESS_AT: usize = 8;
const INODE_AT: usize = 68;
const TCP: u8 = 6;
const INET: u8 = 2;
const INET6: u8 = 10;
/// More than one answer of the kernel.
const ANSWER_BYTES: usize = 64 * 1024;

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FarEnd {
    /// A process has this socket.
    Taken(u64),
    /// Nobody has accepted it: it belongs to whoever listens there, and ends with that.
    Queued,
    /// Nobody reads there any more.
    Closed,
}

/// A socket that listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listening {
    pub address: SocketAddr,
    pub inode: u64,
}

/// The other end of the connection from `here` to `there`; nothing where none is found, which may
/// be one that changed at that moment.
pub(super) fn far_end(here: SocketAddr, there: SocketAddr) -> io::Result<Option<FarEnd>> {
    match asked_far_end(here, there) {
        Ok(end) => Ok(Some(end)),
        Err(_) => read_far_end(here, there),
    }
}

/// Every socket that listens on this port, whatever its address.
pub(super) fn listening(port: u16) -> io::Result<Vec<Listening>> {
    asked_listening(port).or_else(|_| read_listening(port))
}

fn judged(state: u8, inode: u64) -> FarEnd {
    match (state, inode) {
        (CONNECTED | CONNECTING, 0) => FarEnd::Queued,
        (_, 0) => FarEnd::Closed,
        (_, inode) => FarEnd::Taken(inode),
    }
}

fn asked_far_end(here: SocketAddr, there: SocketAddr) -> io::Result<FarEnd> {
    let (IpAddr::V4(from), IpAddr::V4(to)) = (here.ip(), there.ip()) else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    let ends = Ends {
        port: there.port(),
        far_port: here.port(),
        address: to,
        far_address: from,
    };
    let found = ask(INET, REQUEST, u32::MAX, &ends)?;
    let found = found.first().ok_or(io::ErrorKind::NotFound)?;
    // What listens is found where there is no connection.
    if found.state == LISTENS {
        Err(io::ErrorKind::NotFound.into())
    } else {
        Ok(judged(found.state, found.inode))
    }
}

fn asked_listening(port: u16) -> io::Result<Vec<Listening>> {
    let ends = Ends {
        port,
        far_port: 0,
        address: Ipv4Addr::UNSPECIFIED,
        far_address: Ipv4Addr::UNSPECIFIED,
    };
    let mut all = Vec::new();
    for family in [INET, INET6] {
        let found = ask(family, REQUEST | DUMP, 1 << LISTENS, &ends)?;
        all.extend(found.iter().map(|it| Listening {
            address: it.address,
            inode: it.inode,
        }));
    }
    all.retain(|it| it.address.port() == port);
    Ok(all)
}

/// Which socket is meant.
struct Ends {
    port: u16,
    far_port: u16,
    address: Ipv4Addr,
    far_address: Ipv4Addr,
}

/// A socket, as the kernel answers.
struct Told {
    address: SocketAddr,
    state: u8,
    inode: u64,
}

fn ask(family: u8, flags: u16, states: u32, ends: &Ends) -> io::Result<Vec<Told>> {
    let kernel = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    let mut body = vec![family, TCP, 0, 0];
    body.extend(states.to_ne_bytes());
    body.extend(ends.port.to_be_bytes());
    body.extend(ends.far_port.to_be_bytes());
    for address in [ends.address, ends.far_address] {
        body.extend(address.octets());
        body.extend([0; 12]);
    }
    // Any interface, and no cookie.
    body.extend([0; 4]);
    body.extend([0xff; 8]);
    let length = u32::try_from(HEADER + body.len()).map_err(io::Error::other)?;
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    send(&kernel, &message, SendFlags::empty())?;
    let (mut told, mut answer) = (Vec::new(), vec![0; ANSWER_BYTES]);
    loop {
        let (length, _) = recv(&kernel, &mut answer[..], RecvFlags::empty())?;
        let over = hear(&answer[..length], &mut told)?;
        if over || flags & DUMP == 0 {
            return Ok(told);
        }
    }
}

/// Reads the messages of one answer; true after the last of all.
fn hear(mut answer: &[u8], told: &mut Vec<Told>) -> io::Result<bool> {
    while answer.len() >= HEADER {
        let length = u32::from_ne_bytes(bytes(answer, 0)?) as usize;
        let kind = u16::from_ne_bytes(bytes(answer, 4)?);
        let flags = u16::from_ne_bytes(bytes(answer, 6)?);
        let body = answer
            .get(HEADER..length)
            .ok_or(io::ErrorKind::InvalidData)?;
        match kind {
            DONE => return Ok(true),
            ERROR => {
                let code = i32::from_ne_bytes(bytes(body, 0)?);
                return Err(io::Error::from_raw_os_error(-code));
            }
            _ if flags & INTERRUPTED != 0 => return Err(io::ErrorKind::Interrupted.into()),
            _ => told.push(of(body)?),
        }
        let next = length.next_multiple_of(4).min(answer.len());
        answer = &answer[next..];
    }
    Ok(false)
}

fn of(body: &[u8]) -> io::Result<Told> {
    let ip = match bytes::<1>(body, FAMILY_AT)? {
        [INET] => IpAddr::from(Ipv4Addr::from(bytes::<4>(body, ADDRESS_AT)?)),
        _ => IpAddr::from(Ipv6Addr::from(bytes::<16>(body, ADDRESS_AT)?)),
    };
    let port = u16::from_be_bytes(bytes(body, PORT_AT)?);
    let [state] = bytes(body, STATE_AT)?;
    Ok(Told {
        address: SocketAddr::new(ip.to_canonical(), port),
        state,
        inode: u32::from_ne_bytes(bytes(body, INODE_AT)?).into(),
    })
}

fn bytes<const N: usize>(all: &[u8], at: usize) -> io::Result<[u8; N]> {
    let some = all.get(at..at + N).and_then(|it| it.try_into().ok());
    some.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn read_far_end(here: SocketAddr, there: SocketAddr) -> io::Result<Option<FarEnd>> {
    for table in TABLES {
        let mut rows = rows(table, there.port())?.into_iter();
        if let Some(row) = rows.find(|row| row.local == there && row.remote == here) {
            return Ok(Some(judged(row.state, row.inode)));
        }
    }
    Ok(None)
}

fn read_listening(port: u16) -> io::Result<Vec<Listening>> {
    let mut all = Vec::new();
    for table in TABLES {
        let rows = rows(table, port)?.into_iter();
        let listening = rows.filter(|row| row.state == LISTENS);
        all.extend(listening.map(|row| Listening {
            address: row.local,
            inode: row.inode,
        }));
    }
    Ok(all)
}

/// One socket of a table.
struct Row {
    local: SocketAddr,
    remote: SocketAddr,
    state: u8,
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
        state: u8::from_str_radix(fields.next()?, 16).ok()?,
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

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use rustix::io::Errno;

    use super::*;

    /// What is asked for and what is read are the same; a machine may have no netlink of this kind.
    fn both<T: PartialEq + std::fmt::Debug>(asked: io::Result<T>, read: T) -> T {
        match asked {
            Ok(asked) => assert_eq!(asked, read),
            Err(problem) => {
                let none = [
                    Errno::NOENT,
                    Errno::PROTONOSUPPORT,
                    Errno::AFNOSUPPORT,
                    Errno::ACCESS,
                ];
                let none = none.map(|it| Some(it.raw_os_error()));
                assert!(none.contains(&problem.raw_os_error()), "{problem:?}");
            }
        }
        read
    }

    #[test]
    fn the_kernel_says_the_same_in_both_ways() {
        for address in ["127.0.0.1:0", "[::ffff:127.0.0.1]:0", "0.0.0.0:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                assert!(address.starts_with('['), "only IPv6 may be missing");
                continue;
            };
            let port = listener.local_addr().unwrap().port();
            let all = both(asked_listening(port), read_listening(port).unwrap());
            let [one] = &all[..] else {
                panic!("one listens: {all:?}");
            };
            assert_eq!(one.address.port(), port);
            let there = SocketAddr::from(([127, 0, 0, 1], port));
            let stream = TcpStream::connect(there).unwrap();
            let here = stream.local_addr().unwrap();
            let end = || {
                let read = read_far_end(here, there).unwrap().expect("an end");
                both(asked_far_end(here, there), read)
            };
            assert_eq!(end(), FarEnd::Queued, "{address}");
            let taken = listener.accept().unwrap();
            assert!(matches!(end(), FarEnd::Taken(_)), "{address}");
            drop(taken);
            assert_eq!(end(), FarEnd::Closed, "{address}");
            let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
            assert!(asked_far_end(nobody, there).is_err(), "it listens");
            assert_eq!(far_end(nobody, there).unwrap(), None);
        }
    }

    #[test]
    fn an_answer_that_is_cut_off_is_none() {
        let mut message = vec![0; HEADER + INODE_AT + 4];
        let length = u32::try_from(message.len()).unwrap();
        message[..4].copy_from_slice(&length.to_ne_bytes());
        message[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        assert!(!hear(&message, &mut Vec::new()).unwrap());
        for length in HEADER..message.len() {
            assert!(
                hear(&message[..length], &mut Vec::new()).is_err(),
                "{length}"
            );
        }
    }
}
