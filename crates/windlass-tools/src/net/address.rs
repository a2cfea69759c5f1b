//! Which addresses lead inside: one table, for both families, also where one hides in the other.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why an address is none of the open internet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inside {
    Loopback,
    Private,
    Shared,
    Benchmarking,
    Documentation,
    LinkLocal,
    Metadata,
    Multicast,
    Unspecified,
    Broadcast,
    Reserved,
}

impl Inside {
    /// Whether naming a host is enough to reach it there. What no host of one's own has must be named itself.
    pub(crate) fn may_be_a_hosts(self) -> bool {
        matches!(self, Self::Loopback | Self::Private | Self::Shared | Self::Benchmarking | Self::Documentation)
    }
}

impl fmt::Display for Inside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loopback => "this machine itself",
            Self::Private => "a private network",
            Self::Shared => "a network shared by a provider's customers",
            Self::Benchmarking => "a network for benchmarks",
            Self::Documentation => "a network for documentation",
            Self::LinkLocal => "the local link",
            Self::Metadata => "a cloud's metadata service",
            Self::Multicast => "a multicast group",
            Self::Unspecified => "no particular address",
            Self::Broadcast => "everybody on the network",
            Self::Reserved => "a reserved network",
        })
    }
}

/// Where clouds answer whoever asks with the machine's own credentials.
const METADATA: [IpAddr; 9] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 23)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

/// What is special about an address; nothing for one of the open internet.
pub(crate) fn inside(ip: IpAddr) -> Option<Inside> {
    if METADATA.contains(&ip) {
        return Some(Inside::Metadata);
    }
    match ip {
        IpAddr::V4(ip) => inside_v4(ip),
        IpAddr::V6(ip) => inside_v6(ip),
    }
}

fn inside_v4(ip: Ipv4Addr) -> Option<Inside> {
    // First match counts.
    const NETWORKS: [(Ipv4Addr, u8, Inside); 16] = [
        (Ipv4Addr::new(0, 0, 0, 0), 8, Inside::Unspecified),
        (Ipv4Addr::new(10, 0, 0, 0), 8, Inside::Private),
        (Ipv4Addr::new(100, 64, 0, 0), 10, Inside::Shared),
        (Ipv4Addr::new(127, 0, 0, 0), 8, Inside::Loopback),
        (Ipv4Addr::new(169, 254, 0, 0), 16, Inside::LinkLocal),
        (Ipv4Addr::new(172, 16, 0, 0), 12, Inside::Private),
        (Ipv4Addr::new(192, 0, 0, 0), 24, Inside::Reserved),
        (Ipv4Addr::new(192, 0, 2, 0), 24, Inside::Documentation),
        (Ipv4Addr::new(192, 88, 99, 0), 24, Inside::Reserved),
        (Ipv4Addr::new(192, 168, 0, 0), 16, Inside::Private),
        (Ipv4Addr::new(198, 18, 0, 0), 15, Inside::Benchmarking),
        (Ipv4Addr::new(198, 51, 100, 0), 24, Inside::Documentation),
        (Ipv4Addr::new(203, 0, 113, 0), 24, Inside::Documentation),
        (Ipv4Addr::new(224, 0, 0, 0), 4, Inside::Multicast),
        (Ipv4Addr::BROADCAST, 32, Inside::Broadcast),
        (Ipv4Addr::new(240, 0, 0, 0), 4, Inside::Reserved),
    ];
    let found = NETWORKS.iter().find(|(network, length, _)| contains(IpAddr::V4(*network), *length, IpAddr::V4(ip)));
    found.map(|(_, _, inside)| *inside)
}

fn inside_v6(ip: Ipv6Addr) -> Option<Inside> {
    if ip.is_unspecified() {
        return Some(Inside::Unspecified);
    }
    if ip.is_loopback() {
        return Some(Inside::Loopback);
    }
    for embedded in embedded(ip) {
        if let Some(inside) = inside(IpAddr::V4(embedded)) {
            return Some(inside);
        }
    }
    match ip.segments() {
        [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] | [0x2002, ..] | [0x2001, 0, ..] => None,
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Some(Inside::Documentation),
        [0x2001, 2, 0, ..] => Some(Inside::Benchmarking),
        // What is left of the block for protocols.
        [0x2001, 0..=0x1ff, ..] => Some(Inside::Reserved),
        // The one block from which addresses of the open internet are given out.
        [0x2000..=0x3fff, ..] => None,
        [0xfc00..=0xfdff, ..] => Some(Inside::Private),
        [0xfe80..=0xfebf, ..] => Some(Inside::LinkLocal),
        [0xff00..=0xffff, ..] => Some(Inside::Multicast),
        _ => Some(Inside::Reserved),
    }
}

/// The IPv4 addresses that an IPv6 address carries, by every scheme there was.
fn embedded(ip: Ipv6Addr) -> Vec<Ipv4Addr> {
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match ip.segments() {
        // Compatible, mapped, translated.
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => vec![v4(high, low)],
        // NAT64; the prefix for networks of one's own is reserved as a whole.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => vec![v4(high, low)],
        // 6to4.
        [0x2002, high, low, ..] => vec![v4(high, low)],
        // Teredo: its server, and the client with every bit turned over.
        [0x2001, 0, high, low, _, _, client_high, client_low] => vec![v4(high, low), v4(!client_high, !client_low)],
        // ISATAP, in any network.
        [_, _, _, _, 0 | 0x200, 0x5efe, high, low] => vec![v4(high, low)],
        _ => Vec::new(),
    }
}

/// Whether a network has an address.
pub(crate) fn contains(network: IpAddr, length: u8, ip: IpAddr) -> bool {
    match (network, ip) {
        (IpAddr::V4(network), IpAddr::V4(ip)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length.min(32))).unwrap_or(0);
            u32::from(network) & mask == u32::from(ip) & mask
        }
        (IpAddr::V6(network), IpAddr::V6(ip)) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length.min(128))).unwrap_or(0);
            u128::from(network) & mask == u128::from(ip) & mask
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e26_addresses_are_told_apart() {
        use Inside::*;
        for (text, expected) in [
            ("8.8.8.8", None),
            ("1.1.1.1", None),
            ("172.15.255.255", None),
            ("172.32.0.0", None),
            ("100.63.255.255", None),
            ("2606:4700::1111", None),
            ("64:ff9b::808:808", None),
            ("2002:808:808::1", None),
            ("::ffff:8.8.8.8", None),
            ("0.1.2.3", Some(Unspecified)),
            ("10.255.0.1", Some(Private)),
            ("172.31.255.255", Some(Private)),
            ("192.168.0.1", Some(Private)),
            ("100.64.0.1", Some(Shared)),
            ("100.100.100.200", Some(Metadata)),
            ("127.255.255.254", Some(Loopback)),
            ("169.254.1.1", Some(LinkLocal)),
            ("169.254.169.254", Some(Metadata)),
            ("168.63.129.16", Some(Metadata)),
            ("192.0.0.192", Some(Metadata)),
            ("192.0.0.8", Some(Reserved)),
            ("192.0.2.9", Some(Documentation)),
            ("198.19.0.1", Some(Benchmarking)),
            ("224.0.0.1", Some(Multicast)),
            ("239.255.255.255", Some(Multicast)),
            ("255.255.255.255", Some(Broadcast)),
            ("250.1.1.1", Some(Reserved)),
            ("::", Some(Unspecified)),
            ("::1", Some(Loopback)),
            ("::127.0.0.1", Some(Loopback)),
            ("::ffff:10.0.0.1", Some(Private)),
            ("::ffff:0:10.0.0.1", Some(Private)),
            ("64:ff9b::a9fe:a9fe", Some(Metadata)),
            ("64:ff9b:1::808:808", Some(Reserved)),
            ("2002:7f00:1::", Some(Loopback)),
            ("2001:0:a00:1::", Some(Private)),
            ("2001:0:808:808::5601:5601", Some(Metadata)),
            ("2606:4700::5efe:a00:1", Some(Private)),
            ("fd00:ec2::254", Some(Metadata)),
            ("fd12::1", Some(Private)),
            ("fe80::1", Some(LinkLocal)),
            ("fec0::1", Some(Reserved)),
            ("ff02::1", Some(Multicast)),
            ("2001:db8::1", Some(Documentation)),
            ("3fff:1::1", Some(Documentation)),
            ("100::1", Some(Reserved)),
            ("4000::1", Some(Reserved)),
        ] {
            assert_eq!(inside(text.parse().unwrap()), expected, "{text}");
        }
    }
}
