//! Where a runner listens: said by its caller, on the loopback and nowhere else (RQ-7, RQ-8).

use std::env;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use delta_runner_protocol::{SOCKET_FLAG, SOCKET_VARIABLE};

/// An address on the loopback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket(SocketAddr);

/// Why there is nowhere to listen.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error(
        "nobody said where to listen: a runner is started by its worker, which sets \
         {SOCKET_VARIABLE} or {SOCKET_FLAG} to host:port"
    )]
    Missing,
    #[error("`{0}` is no host:port, as in 127.0.0.1:9000")]
    Malformed(String),
    #[error("`{0}` is not on the loopback: whoever reaches a runner can call its functions")]
    NotLoopback(String),
}

impl Socket {
    /// What the command line says, or else the environment.
    pub fn given() -> Result<Socket, AddressError> {
        let flag = flag_in(env::args_os().skip(1));
        let text = flag
            .or_else(|| env::var_os(SOCKET_VARIABLE))
            .ok_or(AddressError::Missing)?;
        text.to_string_lossy().parse()
    }

    pub fn address(self) -> SocketAddr {
        self.0
    }
}

impl std::str::FromStr for Socket {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Socket, AddressError> {
        let malformed = || AddressError::Malformed(text.to_owned());
        let address = match text.strip_prefix("localhost:") {
            Some(port) => {
                let port = port.parse().map_err(|_| malformed())?;
                SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
            }
            None => text.parse().map_err(|_| malformed())?,
        };
        if address.ip().to_canonical().is_loopback() {
            Ok(Socket(address))
        } else {
            Err(AddressError::NotLoopback(text.to_owned()))
        }
    }
}

/// `--tcp-socket X` or `--tcp-socket=X`, wherever it stands.
fn flag_in(mut arguments: impl Iterator<Item = OsString>) -> Option<OsString> {
    while let Some(argument) = arguments.next() {
        if argument == SOCKET_FLAG {
            return arguments.next();
        }
        let text = argument.to_string_lossy();
        let value = text.strip_prefix(SOCKET_FLAG);
        if let Some(value) = value.and_then(|rest| rest.strip_prefix('=')) {
            return Some(value.into());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    // RQ-7, RQ-8
    #[test]
    fn only_the_loopback_is_listened_on() {
        for good in [
            "127.0.0.1:9000",
            "127.3.4.5:1",
            "[::1]:9000",
            "localhost:80",
        ] {
            assert!(good.parse::<Socket>().is_ok(), "{good}");
        }
        for bad in ["", "9000", "127.0.0.1", "example.org:80", "localhost:x"] {
            let error = bad.parse::<Socket>().unwrap_err();
            assert!(matches!(error, AddressError::Malformed(_)), "{bad}");
        }
        for outside in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[::ffff:10.0.0.1]:1"] {
            let error = outside.parse::<Socket>().unwrap_err();
            assert!(matches!(error, AddressError::NotLoopback(_)), "{outside}");
        }
    }

    #[test]
    fn the_flag_is_found_in_both_spellings() {
        let words = |text: &str| {
            let words: Vec<OsString> = text.split(' ').map(OsString::from).collect();
            flag_in(words.into_iter())
        };
        assert_eq!(words("a --tcp-socket b c"), Some("b".into()));
        assert_eq!(words("--tcp-socket=b"), Some("b".into()));
        assert_eq!(words("--tcp-sockets b"), None);
        assert_eq!(words("a --tcp-socket"), None);
    }
}
