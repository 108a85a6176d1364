"""Registers clusters to watch, and removes them. The admin log keeps who did it, and why."""

import re
from dataclasses import dataclass, field

from django.db import transaction
from django.utils import timezone

from ftdash.accounts.services import record
from ftdash.errands import Errand, publish_on_commit
from ftdash.flink_clusters.models import FlinkCluster
from ftdash.flink_clusters.rest import FlinkRest, checked_address
from ftdash.jobs.validation import check_reason
from pipelines.domain.errors import Rejected

CLUSTERS_MAX = 200
HEADER_LENGTH_MAX = 8_000
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE = re.compile(rf"[\x21-\x7e]([\x20-\x7e]{{0,{HEADER_LENGTH_MAX - 2}}}[\x21-\x7e])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The address of a cluster, and the header that lets requests in; empty means no header."""

    address: str
    header_name: str = ""
    header_value: str = field(default="", repr=False)

    @property
    def headers(self) -> dict[str, str]:
        return {self.header_name: self.header_value} if self.header_name else {}


def parsed_header(text: str) -> tuple[str, str]:
    """Splits `Authorization: Bearer x` into name and value; both are empty for an empty text.

    Raises Rejected, without quoting the text, because it may be a secret.
    """
    if not text.strip():
        return "", ""
    name, colon, value = (part.strip() for part in text.partition(":"))
    if not colon or not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
        raise Rejected(
            "Give the header as a name, a colon and a value, in ASCII: Authorization: Bearer TOKEN."
        )
    return name, value


def watch(*, name: str, place: Place, requester: str, reason: str) -> FlinkCluster:
    """Register a cluster, or give a known one a new address or header.

    First asks the cluster for its version. Raises Rejected if no Flink is at the address, and
    Retryable if nothing answers there. History under this name stays.
    """
    reason = check_reason(reason)
    if not _NAME.fullmatch(name):
        raise Rejected(
            f"The name {name!r} cannot be used; take up to 80 lower-case letters, digits, '-' and"
            " '_', and begin with a letter or digit."
        )
    address = checked_address(place.address)
    with FlinkRest(address, place.headers, before_each=_nothing) as flink:
        version = flink.flink_version()
    now = timezone.now()
    with transaction.atomic():
        known = FlinkCluster.objects.select_for_update().filter(name=name).first()
        if known is None:
            if FlinkCluster.objects.count() >= CLUSTERS_MAX:
                raise Rejected(f"{CLUSTERS_MAX} clusters are watched; remove one first.")
            known = FlinkCluster(name=name, created_by=requester, created_at=now)
        known.address, known.flink_version = address, version
        known.header_name, known.header_value = place.header_name, place.header_value
        known.heard_at, known.problem, known.failed_looks, known.due_at = now, "", 0, now
        known.version += 1
        known.save()
        record(
            who=requester,
            what="began to watch",
            subject=f"Flink cluster {name}",
            reason=reason,
            detail=f"{address}{', with a header' if place.header_name else ''}",
        )
        publish_on_commit(Errand.LOOK_AT_FLINK, known.pk)
    return known


def remove(*, name: str, requester: str, reason: str) -> None:
    """Deletes the history kept here; the cluster itself continues. Raises Rejected if unknown."""
    reason = check_reason(reason)
    with transaction.atomic():
        row = FlinkCluster.objects.select_for_update().filter(name=name).first()
        if row is None:
            raise Rejected(f"There is no watched Flink cluster {name!r}; see `watch_flink list`.")
        row.delete()
        record(
            who=requester, what="ceased to watch", subject=f"Flink cluster {name}", reason=reason
        )


def _nothing() -> None:
    """There is no row yet, so there is no turn to keep."""
