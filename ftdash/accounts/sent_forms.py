"""Forms that count once: sent again, by a reload or a second click, one changes nothing.

For what is answered with a secret: such a form sent again would make another one, and void what was
just handed over. Each carries a signed mark; those that were used are rows, so that of two that
arrive at the same moment one counts.
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
    """What is done within is kept together with the mark's use, or neither is.

    Raises Rejected for a mark that was used, that is too old, or that is not ours.
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
    SentForm.objects.filter(at__lt=now - VALID_FOR).delete()  # too old to be signed for
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
