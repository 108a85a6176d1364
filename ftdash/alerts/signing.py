"""The key of a webhook, and the signature that it makes.

The key is derived from the installation's secret key and the channel's salt. The database holds no
key, so reading it does not enable anyone to sign. The key is shown once, when the channel is made.
Source: the scheme of Stripe's webhooks: the time is signed with the body, so that an old message
cannot be sent again.
"""

import hashlib
import hmac

from django.utils.crypto import salted_hmac

SIGNATURE_HEADER = "X-Ftdash-Signature"
_PURPOSE = "ftdash.alerts.webhook"


def key_of(salt: str) -> str:
    """Hexadecimal; its ASCII bytes are the key."""
    return salted_hmac(_PURPOSE, salt, algorithm="sha256").hexdigest()


def signature(key: str, sent_at_s: int, body: bytes) -> str:
    """`t=SECONDS,v1=HEX`, the HMAC-SHA-256 of `SECONDS.` and the body."""
    signed = hmac.new(key.encode(), f"{sent_at_s}.".encode() + body, hashlib.sha256)
    return f"t={sent_at_s},v1={signed.hexdigest()}"
