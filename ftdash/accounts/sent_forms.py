"""Forms that count once: if a reload or a second click sends one again, it changes nothing.

For answers that contain a secret: sent again, such a form would make another secret and void the
one just handed over. Each form carries a signed mark. Used marks are rows, so if two copies arrive
at the same moment, one counts.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from django.core.signing import BadSignature, TimestampSigner
from django.db import IntegrityError, transaction
from django.utils import timezone

from ftdash.accounts.models import SentForm
from pipelines.domain.errors import Rejected

MARK_BYTES = 16
VALID_FOR = timedelta(hours=12)  # as long as a session
_SIGNER = TimestampSigner(salt="ftdash.accounts.sent_forms")


def new_mark() -> str:
    return _SIGNER.sign(secrets.token_urlsafe(MARK_BYTES))


@contextmanager
def sent_once(mark: str) -> Iterator[None]:
    """Commits the block together with the use of the mark, or neither.

    Raises Rejected for a mark that was used, is too old, or is not ours.
    """
    try:
        value = _SIGNER.unsign(mark, max_age=VALID_FOR)
    except BadSignature as error:
        raise Rejected("This form is too old; look at it once more, and send it again.") from error
    with transaction.atomic():
        _use(value)
        yield


def _use(value: str) -> None:
    now = timezone.now()
    SentForm.objects.filter(at__lt=now - VALID_FOR).delete()  # their signatures have expired
    try:
        with transaction.atomic():
            SentForm.objects.create(mark=value, at=now)
    except IntegrityError as error:
        first = SentForm.objects.get(mark=value).at
        raise Rejected(
            f"This form was sent before, on {first:%Y-%m-%d %H:%M:%S} UTC, and was carried out"
            " then: now nothing was changed, and what was handed out then still holds. It cannot be"
            " shown again; only if it was lost, send this form for a new one."
        ) from error
