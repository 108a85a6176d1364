"""The worker's work: errands, each named by its task, and rounds that no single failure stops.

A service stores a row and publishes the errand when its transaction commits. It only needs the
name, so it does not import the code that works on the row. If the broker does not accept a message,
that is only logged: the next reconcile round finds the row and does the same.

A round works for many runs or requests. The failure of one of them must not delay the others.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum
from functools import partial

import psutil
from celery import current_app
from django.conf import settings
from django.db import transaction
from kombu.exceptions import OperationalError

from pipelines.bus.journal import JournalCutShort, UndecodableEvent
from pipelines.domain.errors import Rejected, Retryable

log = logging.getLogger("ftdash.errands")


class Errand(StrEnum):
    START_RUN = "ftdash.tasks.start_run"
    DELIVER_REQUEST = "ftdash.tasks.deliver_request"
    DISPOSE_OF_SAVEPOINT = "ftdash.tasks.dispose_of_savepoint"
    INSPECT_POINT = "ftdash.tasks.inspect_point"
    COMPARE_POINTS = "ftdash.tasks.compare_points"
    START_AUDIT = "ftdash.tasks.start_audit"
    CARRY_ON_GAME_DAY = "ftdash.tasks.carry_on_game_day"
    CARRY_ON_UPGRADE = "ftdash.tasks.carry_on_upgrade"
    DO_QUERY_WORK = "ftdash.tasks.do_query_work"
    LOOK_AT_FLINK = "ftdash.tasks.look_at_flink"
    RECONCILE_LABS = "ftdash.tasks.reconcile_labs"
    DELIVER_ALERTS = "ftdash.tasks.deliver_alerts"


EXPIRES_S = {Errand.DELIVER_ALERTS: settings.ALERT_PERIOD_S}
"""After this many seconds, the next beat does the same work."""


def publish_on_commit(errand: Errand, *key: int) -> None:
    """`key` is the primary key of the row that the errand concerns, if there is one."""
    transaction.on_commit(partial(publish, errand, *key))


def publish(errand: Errand, *key: int, eta: datetime | None = None) -> None:
    """The worker does not start the errand before `eta`."""
    try:
        current_app.send_task(errand.value, key, eta=eta, expires=EXPIRES_S.get(errand))
    except OperationalError as error:
        log.warning("The broker is away, %s waits for reconcile: %s", errand.value, error)


OF_ONE_RUN = (OSError, psutil.Error, Retryable, Rejected, UndecodableEvent, JournalCutShort)
"""Errors that concern one run: a failing disk, a process that is gone, an unreadable journal.

If the database is absent, all runs fail alike, and bugs must be seen, so both pass through.
"""

rounds_log = logging.getLogger("ftdash.rounds")


@contextmanager
def isolated(what: str) -> Iterator[None]:
    """Wraps the work for one item of a round: logs its failure, so that the round continues."""
    try:
        yield
    except OF_ONE_RUN as error:
        rounds_log.error("%s has to wait: %s", what, error)
