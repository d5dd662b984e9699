"""Which internet addresses are public, and which a cloud keeps its secrets behind."""

from __future__ import annotations

import ipaddress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

#: IANA's special-purpose registry for IPv4, with multicast and what is reserved.
_SPECIAL_V4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # carriers' NAT; a cloud's metadata service is in it
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # a cloud's own services, at an address that looks public
            "169.254.0.0/16",  # link-local, metadata services
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocol assignments
            "192.0.2.0/24",  # documentation
            "192.31.196.0/24",  # AS112
            "192.52.193.0/24",  # AMT
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",  # private
            "192.175.48.0/24",  # AS112
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, broadcast
        ),
    )
)

#: The part of IPv6 that is given out, and what is special in it.
_GLOBAL_V6 = IPv6Network("2000::/3")
_SPECIAL_V6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments, Teredo among them
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4: leads to an IPv4 address of the writer's choice
            "2620:4f:8000::/48",  # AS112
            "3fff::/20",  # documentation
        ),
    )
)

#: Addresses that stand for an IPv4 address, in their last 32 bits.
_MAPPED = IPv6Network("::ffff:0:0/96")
_NAT64 = IPv6Network("64:ff9b::/96")

#: Where clouds answer a machine's questions about its own credentials, beyond link-local.
_METADATA: frozenset[Address] = frozenset(
    map(
        ipaddress.ip_address,
        ("168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"),
    )
)


def is_public(address: Address) -> bool:
    """Whether an address is somewhere on the public internet."""
    inner = _inner(address)
    if isinstance(inner, IPv4Address):
        return not any(inner in network for network in _SPECIAL_V4)
    return inner in _GLOBAL_V6 and not any(inner in network for network in _SPECIAL_V6)


def is_metadata(address: Address) -> bool:
    """Whether an address is, or may be, a cloud's metadata service, or no single machine's."""
    inner = _inner(address)
    return inner.is_link_local or inner.is_multicast or inner.is_unspecified or inner in _METADATA


def numeric_host(host: str) -> Address | None:
    """The address that a URL's host is; None for a name.

    Raises:
        ValueError: it is an address in a spelling that some read and others don't: decimal,
            octal, hexadecimal, shortened.
    """
    last = host.rstrip(".").rpartition(".")[2]
    if ":" not in host and not last.isdigit() and not last.lower().startswith("0x"):
        return None
    return ipaddress.ip_address(host)


def _inner(address: Address) -> Address:
    if isinstance(address, IPv6Address) and (address in _MAPPED or address in _NAT64):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address
