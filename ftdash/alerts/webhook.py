"""Sends one message to a webhook: signed, to a checked address, and nowhere else.

An answer of 200 to 299 accepts the message; all others, redirects too, leave it for another try.
"""

import time

import httpx
import msgspec
from django.conf import settings

from ftdash.alerts import signing
from ftdash.alerts.message import Message
from ftdash.alerts.models import Channel
from ftdash.alerts.webhook_address import resolve

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
        signing.SIGNATURE_HEADER: signing.signature(
            signing.key_of(channel.key_salt), int(time.time()), body
        ),
    }
    # Ignores proxies of the environment: one would look the name up again, and might reach more.
    with httpx.Client(trust_env=False, follow_redirects=False, timeout=TIMEOUT_S) as client:
        request = client.build_request("POST", target.url, content=body, headers=headers)
        request.extensions["sni_hostname"] = target.host
        answer = client.send(request, stream=True)  # the body of the answer is not read
        answer.close()
    if not answer.is_success:
        raise httpx.HTTPError(f"It answered {answer.status_code}.")
