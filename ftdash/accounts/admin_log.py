"""The log of what people changed other than pipelines: accounts, tokens, alerts, retention.

The only writer of `AdminAction`. Actions on pipelines are logged by their requests.
"""

from django.utils import timezone

from ftdash.accounts.models import AdminAction


def record(*, who: str, what: str, subject: str, reason: str, detail: str = "") -> None:
    """Call it in the transaction of the change, so that neither exists without the other."""
    AdminAction.objects.create(
        at=timezone.now(), who=who, what=what, subject=subject, detail=detail, reason=reason
    )
