"""Sends one message to a webhook: signed, to a checked address, and nowhere else.

An answer of 200 to 299 accepts the message; all others, redirects too, leave it for another try.

Decides which addresses a webhook may have, and to which machine a message goes.

An admin of the dashboard must not reach through it what only its machine can reach: the cloud's
metadata service, databases, Redis. So webhooks need https and a public address, unless the
installation allows private ones (FTDASH_WEBHOOK_PRIVATE=1), and then also http on loopback. The
name is looked up once per message and every address it has is checked; the connection goes to one
of those.

The key of a webhook, and the signature that it makes.

The key is derived from the installation's secret key and the channel's salt. The database holds no
key, so reading it does not enable anyone to sign. The key is shown once, when the channel is made.
Source: the scheme of Stripe's webhooks: the time is signed with the body, so that an old message
cannot be sent again.
"""

import hashlib
import hmac
import socket
import time
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

import httpx
import msgspec
from django.conf import settings
from django.utils.crypto import salted_hmac

from ftdash.alerts.message import Message
from ftdash.alerts.models import Channel
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


SIGNATURE_HEADER = "X-Ftdash-Signature"
_PURPOSE = "ftdash.alerts.webhooks"


def key_of(salt: str) -> str:
    """Hexadecimal; its ASCII bytes are the key."""
    return salted_hmac(_PURPOSE, salt, algorithm="sha256").hexdigest()


def signature(key: str, sent_at_s: int, body: bytes) -> str:
    """`t=SECONDS,v1=HEX`, the HMAC-SHA-256 of `SECONDS.` and the body."""
    signed = hmac.new(key.encode(), f"{sent_at_s}.".encode() + body, hashlib.sha256)
    return f"t={sent_at_s},v1={signed.hexdigest()}"


TIMEOUT_S = 5.0
_encoder = msgspec.json.Encoder()


def send(channel: Channel, message: Message) -> None:
    """Raises httpx.HTTPError, OSError or Rejected if it was not accepted."""
    target = resolve(channel.address, allows_private=settings.WEBHOOK_PRIVATE)
    body = _encoder.encode(message)
    headers = {
        "Host": target.host_header,
        "Content-Type": "application/json",
        "User-Agent": "ftdash",
        SIGNATURE_HEADER: signature(key_of(channel.key_salt), int(time.time()), body),
    }
    # Ignores proxies of the environment: one would look the name up again, and might reach more.
    with httpx.Client(trust_env=False, follow_redirects=False, timeout=TIMEOUT_S) as client:
        request = client.build_request("POST", target.url, content=body, headers=headers)
        request.extensions["sni_hostname"] = target.host
        answer = client.send(request, stream=True)  # the body of the answer is not read
        answer.close()
    if not answer.is_success:
        raise httpx.HTTPError(f"It answered {answer.status_code}.")
