//! Addresses that are never a server, whoever names one: where clouds keep the credentials of their
//! machines (T17). Who connects checks what a name resolves to, as well.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Alibaba Cloud's, and that of AWS over IPv6.
const METADATA_V4: Ipv4Addr = Ipv4Addr::new(100, 100, 100, 200);
const METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x254);

/// Most clouds use a link-local address, some another.
pub fn is_never_a_server(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_link_local() || [Ipv4Addr::UNSPECIFIED, METADATA_V4].contains(&ip),
        IpAddr::V6(ip) => {
            ip.is_unicast_link_local() || [Ipv6Addr::UNSPECIFIED, METADATA_V6].contains(&ip)
        }
    }
}

/// Whether a host, as an address spells it without its port and brackets, is never a server.
pub fn is_never_a_host(name: &str) -> bool {
    match name.parse::<IpAddr>() {
        Ok(ip) => is_never_a_server(ip),
        // Old spellings of addresses, as `0xa9fea9fe` and `2852039166`: programs read them, too.
        Err(_) => name
            .rsplit('.')
            .find(|part| !part.is_empty())
            .is_some_and(is_number),
    }
}

/// No name ends in one.
fn is_number(part: &str) -> bool {
    let hex = part.strip_prefix("0x").or_else(|| part.strip_prefix("0X"));
    match hex {
        Some(digits) => digits.bytes().all(|it| it.is_ascii_hexdigit()),
        None => part.bytes().all(|it| it.is_ascii_digit()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_clouds_keep_credentials_is_never_a_server() {
        for name in [
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "fe80::1",
            "100.100.100.200",
            "fd00:ec2::254",
            "0.0.0.0",
            "2852039166",
            "0xa9fea9fe",
        ] {
            assert!(is_never_a_host(name), "{name}");
        }
        for name in ["127.0.0.1", "forge.example", "10.0.0.7", "::1", "a1.b2"] {
            assert!(!is_never_a_host(name), "{name}");
        }
    }
}
