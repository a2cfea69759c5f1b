//! Addresses that are not on the public internet: one table for IPv4 and IPv6, including IPv4 embedded in IPv6.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why an address is not on the public internet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpecialAddress {
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

impl SpecialAddress {
    /// Whether allowing a host by name also allows this kind of address. The others must be allowed by address.
    pub(crate) fn is_allowed_by_name(self) -> bool {
        matches!(self, Self::Loopback | Self::Private | Self::Shared | Self::Benchmarking | Self::Documentation)
    }
}

impl fmt::Display for SpecialAddress {
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
            Self::Unspecified => "the unspecified address",
            Self::Broadcast => "the broadcast address",
            Self::Reserved => "a reserved network",
        })
    }
}

/// Metadata services of cloud providers, which hand out the machine's credentials to every client.
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

/// The kind of a special address; none for one on the public internet.
pub(crate) fn special(ip: IpAddr) -> Option<SpecialAddress> {
    if METADATA.contains(&ip) {
        return Some(SpecialAddress::Metadata);
    }
    match ip {
        IpAddr::V4(ip) => special_v4(ip),
        IpAddr::V6(ip) => special_v6(ip),
    }
}

fn special_v4(ip: Ipv4Addr) -> Option<SpecialAddress> {
    // The first match wins.
    const NETWORKS: [(Ipv4Addr, u8, SpecialAddress); 16] = [
        (Ipv4Addr::new(0, 0, 0, 0), 8, SpecialAddress::Unspecified),
        (Ipv4Addr::new(10, 0, 0, 0), 8, SpecialAddress::Private),
        (Ipv4Addr::new(100, 64, 0, 0), 10, SpecialAddress::Shared),
        (Ipv4Addr::new(127, 0, 0, 0), 8, SpecialAddress::Loopback),
        (Ipv4Addr::new(169, 254, 0, 0), 16, SpecialAddress::LinkLocal),
        (Ipv4Addr::new(172, 16, 0, 0), 12, SpecialAddress::Private),
        (Ipv4Addr::new(192, 0, 0, 0), 24, SpecialAddress::Reserved),
        (Ipv4Addr::new(192, 0, 2, 0), 24, SpecialAddress::Documentation),
        (Ipv4Addr::new(192, 88, 99, 0), 24, SpecialAddress::Reserved),
        (Ipv4Addr::new(192, 168, 0, 0), 16, SpecialAddress::Private),
        (Ipv4Addr::new(198, 18, 0, 0), 15, SpecialAddress::Benchmarking),
        (Ipv4Addr::new(198, 51, 100, 0), 24, SpecialAddress::Documentation),
        (Ipv4Addr::new(203, 0, 113, 0), 24, SpecialAddress::Documentation),
        (Ipv4Addr::new(224, 0, 0, 0), 4, SpecialAddress::Multicast),
        (Ipv4Addr::BROADCAST, 32, SpecialAddress::Broadcast),
        (Ipv4Addr::new(240, 0, 0, 0), 4, SpecialAddress::Reserved),
    ];
    let found = NETWORKS.iter().find(|(network, length, _)| contains(IpAddr::V4(*network), *length, IpAddr::V4(ip)));
    found.map(|(_, _, special)| *special)
}

fn special_v6(ip: Ipv6Addr) -> Option<SpecialAddress> {
    if ip.is_unspecified() {
        return Some(SpecialAddress::Unspecified);
    }
    if ip.is_loopback() {
        return Some(SpecialAddress::Loopback);
    }
    for embedded in embedded(ip) {
        if let Some(special) = special(IpAddr::V4(embedded)) {
            return Some(special);
        }
    }
    match ip.segments() {
        [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] | [0x2002, ..] | [0x2001, 0, ..] => None,
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Some(SpecialAddress::Documentation),
        [0x2001, 2, 0, ..] => Some(SpecialAddress::Benchmarking),
        // The rest of the block for protocol assignments.
        [0x2001, 0..=0x1ff, ..] => Some(SpecialAddress::Reserved),
        // The only block of global unicast addresses.
        [0x2000..=0x3fff, ..] => None,
        [0xfc00..=0xfdff, ..] => Some(SpecialAddress::Private),
        [0xfe80..=0xfebf, ..] => Some(SpecialAddress::LinkLocal),
        [0xff00..=0xffff, ..] => Some(SpecialAddress::Multicast),
        _ => Some(SpecialAddress::Reserved),
    }
}

/// The IPv4 addresses that an IPv6 address embeds, by any known scheme.
fn embedded(ip: Ipv6Addr) -> Vec<Ipv4Addr> {
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match ip.segments() {
        // IPv4-compatible, IPv4-mapped, IPv4-translated.
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => vec![v4(high, low)],
        // NAT64; the prefix for local use is reserved as a whole.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => vec![v4(high, low)],
        // 6to4.
        [0x2002, high, low, ..] => vec![v4(high, low)],
        // Teredo: its server, and the client with all bits inverted.
        [0x2001, 0, high, low, _, _, client_high, client_low] => vec![v4(high, low), v4(!client_high, !client_low)],
        // ISATAP, in any network.
        [_, _, _, _, 0 | 0x200, 0x5efe, high, low] => vec![v4(high, low)],
        _ => Vec::new(),
    }
}

/// Whether a network contains an address.
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
    fn e26_special_addresses_are_recognized() {
        use SpecialAddress::*;
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
            assert_eq!(special(text.parse().unwrap()), expected, "{text}");
        }
    }
}
