"""The log of what people changed beside pipelines: accounts, tokens, alerts, retention.

The one writer of `AdminAction`; what is asked of pipelines is logged by its request.
"""

from django.utils import timezone

from ftdash.accounts.models import AdminAction


def record(*, who: str, what: str, subject: str, reason: str, detail: str = "") -> None:
    """In the transaction of the change, so that there is neither without the other."""
    AdminAction.objects.create(
        at=timezone.now(), who=who, what=what, subject=subject, detail=detail, reason=reason
    )
