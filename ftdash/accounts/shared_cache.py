"""Django's cache in a table, so that all web servers share it.

allauth keeps used codes and counts of wrong codes in the cache, and `authentication` counts wrong
tokens there. The database survives a restart of Redis, and a sign-in needs it anyway. Django's own
`DatabaseCache` does not fit: it pickles values, drops valid entries when it has many, and lets two
servers add the same key if an expired entry had it.

Values are JSON. Pages keep their own caches in the memory of their process.
"""

from datetime import UTC, datetime
from typing import Any

from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from ftdash.accounts.models import CacheEntry


class SharedCache(BaseCache):
    """`add` and `incr` are atomic, whatever number of servers call them."""

    def __init__(self, _location: str, params: dict[str, Any]) -> None:
        super().__init__(params)

    def get(self, key: str, default: Any = None, version: int | None = None) -> Any:
        entry = self._entries(key, version).first()
        return default if entry is None else entry.value

    def add(
        self, key: str, value: Any, timeout: float | None = DEFAULT_TIMEOUT, version: Any = None
    ) -> bool:
        key = self.make_and_validate_key(key, version)
        CacheEntry.objects.filter(_has_expired(), key=key).delete()
        given = {"value": value, "expires_at": self._expiry(timeout)}
        _, is_new = CacheEntry.objects.get_or_create(key=key, defaults=given)
        return is_new

    def set(
        self, key: str, value: Any, timeout: float | None = DEFAULT_TIMEOUT, version: Any = None
    ) -> None:
        key = self.make_and_validate_key(key, version)
        given = {"value": value, "expires_at": self._expiry(timeout)}
        CacheEntry.objects.update_or_create(key=key, defaults=given)

    def incr(self, key: str, delta: int = 1, version: int | None = None) -> int:
        """Raises ValueError if there is no such entry, or it has expired. Its expiry stays."""
        with transaction.atomic():
            entry = self._entries(key, version).select_for_update().first()
            if entry is None:
                raise ValueError(f"There is no key {key!r}.")
            entry.value += delta
            entry.save(update_fields=["value"])
        return int(entry.value)

    def touch(
        self, key: str, timeout: float | None = DEFAULT_TIMEOUT, version: int | None = None
    ) -> bool:
        return bool(self._entries(key, version).update(expires_at=self._expiry(timeout)))

    def delete(self, key: str, version: int | None = None) -> bool:
        return bool(self._entries(key, version).delete()[0])

    def clear(self) -> None:
        CacheEntry.objects.all().delete()

    def _entries(self, key: str, version: int | None) -> QuerySet[CacheEntry]:
        key = self.make_and_validate_key(key, version)
        return CacheEntry.objects.filter(~_has_expired(), key=key)

    def _expiry(self, timeout: float | None) -> datetime | None:
        ends_s = self.get_backend_timeout(timeout)
        return None if ends_s is None else datetime.fromtimestamp(ends_s, UTC)


def forget_expired() -> None:
    CacheEntry.objects.filter(_has_expired()).delete()


def _has_expired() -> Q:
    return Q(expires_at__isnull=False, expires_at__lte=timezone.now())
