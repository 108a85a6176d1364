"""The Celery tasks: each ends within seconds and is safe to repeat.

`ftdash.errands` names those that services ask for, and the settings those of the beat.
"""

from celery import shared_task
from celery.signals import worker_init
from django.utils import timezone

from ftdash.accounts import shared_cache
from ftdash.alerts import delivery as alert_delivery
from ftdash.alerts import evaluation
from ftdash.audits import services as audits
from ftdash.errands import Errand, isolated, publish
from ftdash.flink_clusters.services import looking as flink_clusters
from ftdash.gameday import services as game_days
from ftdash.jobs import fresh_code
from ftdash.lab import services as labs
from ftdash.points.services import comparisons, disposal
from ftdash.retention import pruning
from ftdash.supervision import drivers
from ftdash.upgrades import packages
from ftdash.upgrades import services as upgrades
from ftdash.watching.services import incidents as watched_incidents
from ftdash.watching.services import reports as watched_files
from ftdash.watching.services import savepoints as query_savepoints
from ftdash.watching.services import work as query_work


@worker_init.connect
def begin_worker(**_: object) -> None:
    fresh_code.stay()


@shared_task(ignore_result=True)
def start_run(run_key: int) -> None:
    """Start a driver for a run that has none."""
    drivers.supervise_run(run_key)


@shared_task(ignore_result=True)
def deliver_request(request_key: int) -> None:
    """Deliver a request to the run's driver."""
    drivers.deliver(request_key)


@shared_task(ignore_result=True)
def reconcile() -> None:
    """Compare what should run with what runs, and repair the differences."""
    drivers.reconcile()


@shared_task(ignore_result=True)
def dispose_of_savepoint(request_key: int) -> None:
    """Delete the files of a savepoint that no run needs."""
    disposal.dispose_of(request_key)


@shared_task(ignore_result=True)
def inspect_point(inspection_key: int) -> None:
    """Read a recovery point, for about a second at a time."""
    if comparisons.go_on_inspecting(inspection_key):
        publish(Errand.INSPECT_POINT, inspection_key)


@shared_task(ignore_result=True)
def compare_points(comparison_key: int) -> None:
    """Compare two recovery points, for about a second at a time."""
    if comparisons.go_on_comparing(comparison_key):
        publish(Errand.COMPARE_POINTS, comparison_key)


@shared_task(ignore_result=True)
def start_audit(audit_key: int) -> None:
    """Start the process of a stored audit."""
    audits.start(audit_key)


@shared_task(ignore_result=True)
def carry_on_game_day(key: int) -> None:
    """Check one game day."""
    game_days.carry_on(key)


@shared_task(ignore_result=True)
def reconcile_game_days() -> None:
    """Check all game days that are under way."""
    game_days.reconcile()


@shared_task(ignore_result=True)
def carry_on_upgrade(key: int) -> None:
    """Look at one upgrade, and do what is due."""
    upgrades.carry_on(key)


@shared_task(ignore_result=True)
def reconcile_upgrades() -> None:
    """Look at all upgrades that are under way."""
    upgrades.reconcile()


@shared_task(ignore_result=True)
def reconcile_labs() -> None:
    """Start a requested lab, and end one that has died."""
    labs.reconcile()


@shared_task(ignore_result=True)
def evaluate_alerts() -> None:
    """Judge all rules once."""
    evaluation.evaluate(timezone.now())


@shared_task(ignore_result=True)
def deliver_alerts() -> None:
    """Send due messages; the next task continues what takes too long for one."""
    if alert_delivery.deliver_due():
        publish(Errand.DELIVER_ALERTS)


@shared_task(ignore_result=True)
def look_at_watched_files() -> None:
    """Look at the directories and event logs of watched queries that are due."""
    if watched_files.look_at_files():
        look_at_watched_files.delay()


@shared_task(ignore_result=True)
def do_query_work(key: int) -> None:
    """Start the process that works on a watched query's files."""
    query_work.start(key)


@shared_task(ignore_result=True)
def look_after_query_work() -> None:
    """Start forgotten query work, end dead work, look after savepoints, and judge incidents."""
    query_work.start_forgotten()
    query_work.end_silent()
    query_savepoints.look_after(timezone.now())
    watched_incidents.judge_watched(timezone.now())


@shared_task(ignore_result=True)
def look_at_flink_clusters() -> None:
    """Ask the watched Flink clusters that are due."""
    if flink_clusters.look_at_due():
        look_at_flink_clusters.delay()


@shared_task(ignore_result=True)
def look_at_flink(key: int) -> None:
    """Ask one Flink cluster now, because a person has requested something of it."""
    with isolated(f"The look at the Flink cluster {key}"):
        flink_clusters.look(key)


@shared_task(ignore_result=True)
def prune_history() -> None:
    """Delete rows that have reached their age limit; the next task does what is left."""
    shared_cache.forget_expired()
    if pruning.prune():
        prune_history.delay()


@shared_task(ignore_result=True)
def shorten_run_files() -> None:
    """Delete old or excessive files in the directories of runs, and unused packages."""
    pruning.shorten_journals()
    pruning.shorten_logs()
    pruning.forget_old_requests()
    packages.sweep()
