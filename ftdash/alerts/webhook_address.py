"""Decides which addresses a webhook may have, and to which machine a message goes.

An admin of the dashboard must not reach through it what only its machine can reach: the cloud's
metadata service, databases, Redis. So webhooks need https and a public address, unless the
installation allows private ones (FTDASH_WEBHOOK_PRIVATE=1), and then also http on loopback. The
name is looked up once per message and every address it has is checked; the connection goes to one
of those.
"""

import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

import httpx

from pipelines.domain.errors import Rejected

Address = IPv4Address | IPv6Address
NAT64 = IPv6Network("64:ff9b::/96")
PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Target:
    """`url` names the machine by its address; its certificate must be for `host`."""

    url: httpx.URL
    host: str
    host_header: str


def parse(text: str) -> httpx.URL:
    """Raises Rejected if the text is not the address of a webhook, wherever it leads."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise Rejected(f"This is no address of a webhook: {error}.") from error
    if url.scheme not in PORTS or not url.host:
        raise Rejected("The address of a webhook begins with https:// and names a machine.")
    if url.userinfo:
        raise Rejected("The address of a webhook holds no user or password; messages are signed.")
    return url


def resolve(text: str, *, allows_private: bool) -> Target:
    """Raises Rejected if a message may not go there, OSError if the name is unknown."""
    url = parse(text)
    port = url.port or PORTS[url.scheme]
    try:
        found = socket.getaddrinfo(url.host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # an empty part, or one of more than 63 letters
        raise Rejected(f"{url.host!r} can be the name of no machine; look for a slip.") from error
    addresses = [ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    for address in addresses:
        check_address(url, address, allows_private=allows_private)
    chosen = min(addresses, key=lambda address: address.version)  # prefers IPv4, which always works
    host = f"[{chosen}]" if isinstance(chosen, IPv6Address) else str(chosen)
    return Target(url.copy_with(host=host), url.host, url.netloc.decode("ascii"))


def check_address(url: httpx.URL, address: Address, *, allows_private: bool) -> None:
    plain = _unwrapped(address)
    if not (plain.is_global or allows_private) or plain.is_multicast or plain.is_unspecified:
        raise Rejected(
            f"{url.host} is {plain}, no public address; whoever runs this installation can allow"
            " those with FTDASH_WEBHOOK_PRIVATE=1."
        )
    if url.scheme == "http" and not plain.is_loopback:
        raise Rejected("A webhook is called over https; http is for loopback alone.")


def _unwrapped(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, if it does."""
    if isinstance(address, IPv6Address):
        if address in NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address
