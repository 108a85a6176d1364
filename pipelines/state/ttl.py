"""Time-to-live of state: when an entry expires, and whether it may still be read afterwards.

Time is processing time, which the caller passes in, in milliseconds since the epoch. The time of
the last update is stored, and expiry is computed from it; so a changed duration also applies to old
entries. Source: Flink's `StateTtlConfig` and `AbstractTtlDecorator`.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from pipelines.domain.errors import Rejected

UPDATED_COLUMN = "__updated_ms"
"""Added to every table with a time-to-live: int64, the time of the entry's last update."""

NOT_YET_UPDATED_MS = 2**62
"""The time of entries that were stored before their state had a time-to-live: they begin to age at
their next update, not at once."""

CLEANED_PER_BATCH = 1_000
"""Entries checked for expiry after each batch: a bounded cost, like Flink's incremental cleanup."""


class TtlUpdate(StrEnum):
    """Which accesses restart an entry's time. Flink: `StateTtlConfig.UpdateType`."""

    ON_CREATE_AND_WRITE = "OnCreateAndWrite"
    ON_READ_AND_WRITE = "OnReadAndWrite"


class TtlVisibility(StrEnum):
    """Decides if an expired entry may still be read. Flink: `StateTtlConfig.StateVisibility`."""

    NEVER_RETURN_EXPIRED = "NeverReturnExpired"
    RETURN_EXPIRED_IF_NOT_CLEANED_UP = "ReturnExpiredIfNotCleanedUp"


@dataclass(frozen=True, slots=True)
class StateTtlConfig:
    """An entry expires `ttl_ms` after its last update. Lists and maps expire entry by entry."""

    ttl_ms: int
    update_type: TtlUpdate = TtlUpdate.ON_CREATE_AND_WRITE
    visibility: TtlVisibility = TtlVisibility.NEVER_RETURN_EXPIRED

    def __post_init__(self) -> None:
        if self.ttl_ms <= 0:
            raise Rejected(f"A time-to-live of {self.ttl_ms} ms cannot be; it must be positive.")

    @property
    def renews_on_read(self) -> bool:
        return self.update_type is TtlUpdate.ON_READ_AND_WRITE

    @property
    def hides_expired(self) -> bool:
        return self.visibility is TtlVisibility.NEVER_RETURN_EXPIRED

    def has_expired(self, updated_ms: npt.NDArray[np.int64], now_ms: int) -> npt.NDArray[np.bool_]:
        return np.asarray(updated_ms <= now_ms - self.ttl_ms)
