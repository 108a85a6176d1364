"""A message as a receiver gets it, signed by the code that signs messages."""

import hashlib
import hmac
import time

from ftdash.alerts.delivery import signature

__all__ = ["given", "hashlib", "hmac"]

key, seconds, body = "a-key", int(time.time()), b'{"id": 7}'
given = signature(key, seconds, body).partition("v1=")[2]
