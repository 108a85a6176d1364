"""The results of game days, labs, audits, alerts and long readings, for the simulated site.

The rows look as services and workers write them; their content is made up.
"""

import atexit
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from allauth.usersessions.models import UserSession
from django.conf import settings as project
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.utils import timezone

from ftdash.accounts import services
from ftdash.accounts.models import ApiToken, TokenScope
from ftdash.alerts import services as alert_services
from ftdash.alerts.hysteresis import Band
from ftdash.alerts.models import Alert, AlertRule, Channel, ChannelKind, Evaluation, Watched
from ftdash.checkpoints.models import Audit, Checkpoint
from ftdash.flink_clusters.models import FlinkAction, FlinkActionKind, FlinkCluster
from ftdash.flink_clusters.services import actions as flink_actions
from ftdash.flink_clusters.services import looking
from ftdash.flink_clusters.services import registration as flink_registration
from ftdash.flink_clusters.services.registration import Place
from ftdash.flink_clusters.triggers import TriggerOptions
from ftdash.gameday.models import Fault, GameDay, GameDayState, GameDayVerdict
from ftdash.gameday.scoring import AuditFound, Measures, Seen, SinkProof
from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import PointComparison, PointInspection, PointLabel, Run
from ftdash.lab.models import Lab, LabState
from ftdash.points.services import comparisons
from ftdash.watching.models import QuerySavepoint, QueryWork
from ftdash.watching.services import (
    execution,
    forks,
    registration,
    reports,
    savepoints,
    state,
    work,
)
from ftdash.watching.services import incidents as watched_incidents
from ftdash.watching.services.registration import Sighting
from ftdash.watching.services.reports import Report
from ftdash.watching.work_requests import (
    LookAtState,
    Rewind,
    StatePlace,
    StateRow,
    StateRows,
    TakeSavepoint,
)
from pipelines.bus.run_log import RunLog
from pipelines.domain.ids import Attempt
from pipelines.domain.log_lines import DRIVER, LogLine
from pipelines.domain.status import CheckpointKind, JobStatus, RecoveryPhase
from pipelines.lab.options import MODES
from pipelines.lab.report import LabReport
from pipelines.structured.preflight import Output
from tests.structured_directories import Traits, write_query
from tests.unit.lab.reports import mode, report
from tests.web import watched
from tests.web.audit_reports import NOT_PROVEN, PROVEN, report_of
from tests.web.recorded_flink import RecordedFlink, recorded_flink

MEASURED_LAB = Path(__file__).with_name("measured_lab.json")
"""The output of a run of `manage.py lab --json`."""

PHASES = {
    RecoveryPhase.DETECT.value: 12.0,
    RecoveryPhase.DECIDE.value: 3.0,
    RecoveryPhase.STOP.value: 105.0,
    RecoveryPhase.START.value: 640.0,
    RecoveryPhase.RESTORE.value: 80.0,
}
MEASURES = Measures(
    detection_ms=12.0,
    recovery_ms=840.0,
    phases=PHASES,
    restored_checkpoint_id=12,
    records_replayed=11_870,
    checkpoints_lost=1,
    late_refused=2,
)


def ended_game_days(run: Run) -> None:
    """Makes one game day per verdict; the newest has passed."""
    now = timezone.now()
    failed_at = now - timedelta(seconds=59)
    proven = AuditFound(
        is_over=True,
        is_as_recorded=True,
        proofs=[SinkProof("hourly-delay", True, 14), SinkProof("unmatched", False, None)],
    )
    seen = Seen(
        now=now,
        status=JobStatus.RUNNING,
        injected_at=now - timedelta(minutes=1),
        failed_at=failed_at,
        cause="Slot 1 (pid 4101) is gone: its connection was closed.",
        running_at=failed_at + timedelta(seconds=1),
        committed_checkpoint_id=14,
        measures=MEASURES,
        audit=proven,
    )
    unharmed = replace(seen, failed_at=None, measures=Measures(), audit=None)
    different = replace(
        seen, audit=replace(proven, is_as_recorded=False, first_difference="7 rows are gone.")
    )
    _game_day(
        run,
        Fault.KILL_DRIVER,
        GameDayVerdict.NOT_HAPPENED,
        "Nothing failed within 2 min 00 s.",
        unharmed,
    )
    why = "The output is not as recorded: 7 rows are gone."
    _game_day(run, Fault.FULL_DISK, GameDayVerdict.FAILED, why, different)
    _game_day(
        run,
        Fault.KILL_SLOT_ALIGNING,
        GameDayVerdict.PASSED,
        "It recovered, and lost nothing and doubled nothing.",
        seen,
    )


def _game_day(run: Run, fault: Fault, verdict: GameDayVerdict, why: str, seen: Seen) -> None:
    GameDay.objects.create(
        pipeline=run.pipeline,
        run=run,
        fault=fault,
        slot=None if fault is Fault.KILL_DRIVER else 1,
        requester="admin",
        reason="before the month's end",
        state=GameDayState.ENDED,
        asked_at=seen.injected_at,
        injected_at=seen.injected_at,
        ended_at=seen.now,
        verdict=verdict,
        why=why,
        seen=msgspec.to_builtins(seen),
        audit=Audit.objects.filter(run=run).order_by("-pk").first(),
    )


def audits(run: Run) -> None:
    """Makes an audit that found a difference, then one that found none."""
    now = timezone.now()
    for found, at in ((NOT_PROVEN, now - timedelta(hours=2)), (PROVEN, now)):
        Audit.objects.create(
            run=run,
            requester="admin",
            created_at=at,
            started_at=at,
            moved_at=at,
            ended_at=at,
            report=msgspec.to_builtins(report_of(found)),
            sentences=["delays: 70 rows as recorded, up to checkpoint 7 of run run-1."],
        )


def labs() -> None:
    """Makes a measured lab, and a newer, made-up one in which a mode broke its promise."""
    _lab(msgspec.json.decode(MEASURED_LAB.read_bytes(), type=LabReport))
    broken = ["It lost 3 views, and promises to lose none."]
    kept = report(
        *(mode(each.name, broken=broken if each.name == "acked" else None) for each in MODES)
    )
    _lab(kept)


def _lab(kept: LabReport) -> None:
    now = timezone.now()
    Lab.objects.create(
        options=msgspec.to_builtins(kept.options),
        requested_by="admin",
        reason="to compare the modes",
        state=LabState.ENDED,
        asked_at=now,
        started_at=now,
        ended_at=now,
        report=msgspec.to_builtins(kept),
    )


def alerts(run: Run) -> None:
    """Makes two firing alerts, one acknowledged, and a cleared one whose rule is silenced."""
    now = timezone.now()
    Evaluation.objects.create(at=now)
    rules = list(AlertRule.objects.all()[:3])
    _alert(rules[0], run, now)
    looked_after = _alert(rules[1], run, now - timedelta(minutes=4))
    looked_after.acknowledged_by = "admin"
    looked_after.acknowledged_at = now
    looked_after.acknowledged_reason = "the network team is at it"
    looked_after.save()
    cleared = _alert(rules[2], run, now - timedelta(hours=5))
    cleared.cleared_at = now - timedelta(hours=4)
    cleared.cleared_because = "It went below its lower threshold."
    cleared.save()
    alert_services.make_silence(
        rule=rules[2].name,
        pipeline=None,
        until=now + timedelta(days=2),
        requester="admin",
        reason="the disks are being replaced",
    )


def settings() -> None:
    """Makes a colleague's session, tokens, and a rule and a channel of the installation's own."""
    session = SessionStore()
    session.create()
    UserSession.objects.create(
        user=User.objects.get(username="operator"),
        session_key=session.session_key,
        ip="192.0.2.7",
        user_agent="Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0",
    )
    services.create_token(
        name="ci",
        scope=TokenScope.ACT,
        created_by="admin",
        reason="savepoints before a release",
        expires_at=timezone.now() + timedelta(days=90),
    )
    ApiToken.objects.filter(name="ci").update(last_used_at=timezone.now())
    services.create_token(
        name="grafana", scope=TokenScope.READ, created_by="admin", reason="the board in the hall"
    )
    alert_services.make_rule(
        name="much waits in channels",
        watched=Watched.BUFFERED_BYTES,
        pipeline=None,
        band=Band(64e6, 60.0, 16e6, 60.0),
        requester="admin",
        reason="backpressure is seen late",
    )
    Channel.objects.create(
        name="on-call",
        kind=ChannelKind.MAIL,
        address="on-call@example.org",
        created_by="admin",
        created_at=timezone.now(),
    )


def log_lines(run: Run) -> None:
    """Writes the lines that driver, slot and the author's code log around a failure."""
    lines = (
        ("INFO", DRIVER, "pipelines.runtime", "Attempt 1 deploys 8 subtasks on 2 slots.", ""),
        ("INFO", "weather-at-departure[0]", "flights.weather", "Read 26,115 rows of weather.", ""),
        ("WARNING", "hourly-delay[1]", "flights.delays", "A flight without a carrier.", ""),
        ("ERROR", "slot 1", "pipelines.runtime", "The slot ends.", TRACE),
    )
    log = RunLog(run_directory(run).log)
    log.keep(
        LogLine(
            time=timezone.now(),
            level=level,
            subtask=subtask,
            attempt=Attempt(1),
            logger=logger,
            message=message,
            trace=trace,
        )
        for level, subtask, logger, message, trace in lines
    )
    log.close()


TRACE = """Traceback (most recent call last):
  File "flights/delays.py", line 41, in mean_delay
    return total / count
ZeroDivisionError: division by zero
"""


def labels() -> None:
    """Labels savepoints as people do, to find them again."""
    savepoints = Checkpoint.objects.filter(kind=CheckpointKind.SAVEPOINT.value).order_by("pk")
    texts = ("before the new version", "month's end", "before the new columns")
    for row, text in zip(savepoints, texts, strict=False):
        PointLabel.objects.create(
            path=row.path, label=text, labelled_by="admin", labelled_at=timezone.now()
        )


def _alert(rule: AlertRule, run: Run, at: datetime) -> Alert:
    return Alert.objects.create(
        rule=rule,
        rule_name=rule.name,
        watched=rule.watched,
        pipeline=run.pipeline,
        fire_above=rule.fire_above,
        fired_at=at,
        fired_value=rule.fire_above * 3,
    )


def compared(left: str, right: str) -> None:
    comparisons.ask(left, right, "admin")
    while comparisons.go_on_comparing(PointComparison.objects.get(left=left, right=right).pk):
        pass


def half_read(path: str) -> None:
    """Makes a verification that is under way for as long as the site lives."""
    PointInspection.objects.create(
        path=path,
        files=40,
        files_read=13,
        bytes=9_000_000,
        bytes_read=3_100_000,
        moved_at=timezone.now(),
    )


def watched_queries(root: Path) -> None:
    """Makes two queries that listeners report, one of them failed, and one known by its files."""
    now = timezone.now()
    scope = TokenScope.LISTEN
    services.create_token(name="spark-jobs", scope=scope, created_by="admin", reason="the listener")
    began = now - timedelta(minutes=12)
    orders = [_ten_seconds(began, number) for number in range(72)]
    told(*orders, dropped={watched.QUERY: 14})
    failed, ended_at = watched.OTHER, began + timedelta(seconds=210)
    message = "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n\tat org.apache.spark.sql"
    told(
        watched.said("started", began, query=failed, name="prices"),
        *(_ten_seconds(began, number, query=failed, name="prices") for number in range(20)),
        watched.said(
            "terminated", ended_at, query=failed, exception=message, errorClass="DIVIDE_BY_ZERO"
        ),
    )
    project.WATCH_ROOTS = [str(root)]
    project.WATCH_SAVEPOINTS = str(root.parent / "query-savepoints")
    damaged = watched.checkpoint_at(root / "clicks", watched.THIRD, batches=40, began=began)
    (damaged / "offsets" / "17").unlink()
    seen = Sighting(directory=str(damaged), trigger_interval_ms=10_000)
    registration.watch(name="clicks", seen=seen, requester="admin", reason="before the upgrade")
    saved_and_rewound(root)
    watched_incidents.judge_watched(now)


def saved_and_rewound(root: Path) -> None:
    """Makes a query with two savepoints (one altered), a fork, rows of state, and verdicts."""
    made = write_query(root / "baskets", Traits(is_running=True))
    seen = Sighting(directory=str(made.checkpoint), output=str(made.output))
    registration.watch(name="baskets", seen=seen, requester="admin", reason="the new join")
    who = {"requester": "admin", "reason": "before the new join"}
    for label in ("before the new join", "nightly"):
        asked = TakeSavepoint(label=label, batch_id=7, keep_days=30)
        saved = done(savepoints.ask_to_take("baskets", asked, **who, is_here=True)).result
    QuerySavepoint.objects.filter(pk=saved["savepoint"]).update(
        problems=["state/0/0/8.delta has been altered."]
    )
    places = {"target": str(root / "baskets-fork"), "output_target": str(root / "baskets-again")}
    fork = Rewind(batch_id=7, **places)
    done(forks.ask_for_fork("baskets", fork, **who, is_here=True))
    look = LookAtState(place=StatePlace(batch_id=7), other=StatePlace(batch_id=11))
    key = state.ask_to_look("baskets", look, **who, is_here=True)
    rows = [StateRow(key={"user": f"u{n}"}, value={"count": 40 + n}) for n in range(6)]
    work.end(key, result=StateRows(rows=rows, count=6, gained=rows[:2], gained_count=2))
    refused = Rewind(batch_id=7, target=str(root / "again"), output=Output.SAME_FILES)
    done(forks.ask_for_verdict("baskets", refused, **who, is_here=True))
    possible = Rewind(
        batch_id=9, target=str(root / "again"), output_target=str(root / "output-again")
    )
    done(forks.ask_for_verdict("baskets", possible, **who, is_here=True))


def done(key: int) -> QueryWork:
    return execution.carry_out(key)


def told(*events: Any, dropped: Mapping[str, int] | None = None) -> None:
    sent = Report(
        events=events,
        dropped=dropped or {},
        listener=watched.LISTENER,
        version="0.1.0",
        spark="4.3.0",
    )
    taken = reports.take_in(sent, reporter="token spark-jobs")
    if taken.problems:
        raise ValueError(taken.problems[0])


def next_batch(number: int) -> None:
    """Reports another batch of the running query."""
    told(watched.progress(number, at=timezone.now(), rows=900 + 30 * (number % 7)))


FLINKS: list[RecordedFlink] = []
KEEPING = ExitStack()
"""Keeps the recorded clusters answering as long as this process lives."""

atexit.register(KEEPING.close)


def flink_clusters() -> None:
    """Makes a live cluster whose job has been watched for two minutes, and a dead cluster."""
    for name, version in (("prod", "2.3"), ("staging", "1.20")):
        flink = KEEPING.enter_context(recorded_flink(version))
        flink.move_to(timezone.now() - timedelta(minutes=2))
        _slower(flink)
        place = Place(address=flink.address)
        flink_registration.watch(name=name, place=place, requester="admin", reason="the new job")
        for number in range(15 if name == "prod" else 4):
            for second in range(4):
                _next_flink_checkpoint(flink, 4 * number + second)
            look_at_flink(name)
        FLINKS.append(flink)
    prod, staging = FLINKS
    asked = {"requester": "admin", "reason": "before the upgrade"}
    for kind, body in (("SAVEPOINT", "savepoint_done"), ("STOP", "savepoint_failed")):
        key = flink_actions.ask("prod", prod.jid, FlinkActionKind(kind), TriggerOptions(), **asked)
        look_at_flink("prod")
        trigger = FlinkAction.objects.get(pk=key).trigger_id
        prod.outcomes[trigger] = prod.bodies[body]["body"]
        look_at_flink("prod")
    _restarted(prod)
    look_at_flink("prod")
    FlinkCluster.objects.filter(name="staging").update(address="http://127.0.0.1:1")
    look_at_flink("staging")
    since = timezone.now() - timedelta(minutes=3)
    FlinkCluster.objects.filter(name="staging").update(heard_at=since)
    watched_incidents.judge_watched(timezone.now())
    staging.forget_requests()


def next_flink_look(number: int) -> None:
    """Adds a checkpoint of the running job, and looks at its cluster."""
    _next_flink_checkpoint(FLINKS[0], number)
    look_at_flink("prod")


def look_at_flink(name: str) -> None:
    looking.look(looking.key_of(name))


def _next_flink_checkpoint(flink: RecordedFlink, number: int) -> None:
    status = "FAILED" if number % 37 == 20 else "COMPLETED"
    flink.advance(1, status=status, took_ms=210 + 17 * (number % 9) + 300 * (number % 31 == 7))


def _restarted(flink: RecordedFlink) -> None:
    """Makes the job restart three times within its last minutes."""
    history = flink.bodies["exceptions"]["body"]["exceptionHistory"]
    entry, now_ms = history["entries"][0], round(timezone.now().timestamp() * 1000)
    history["entries"] = [entry | {"timestamp": now_ms - 60_000 * n} for n in (1, 2, 3)]
    flink.job["last-modification"] += 1


def _slower(flink: RecordedFlink) -> None:
    """Makes the second operator wait for the slower of its inputs."""
    for vertex in range(2):
        for each in flink.bodies[f"subtasks_{vertex}"]["body"]["subtasks"]:
            each["start_delay"] = 12 + 30 * vertex
            each["alignment"]["duration"] = (90 + 50 * each["index"]) * vertex
            each["checkpoint"] = {"sync": 4 + vertex, "async": 18 + 20 * vertex}
            each["end_to_end_duration"] = 34 + vertex * (59 + 90 + 50 * each["index"])


def _ten_seconds(began: datetime, number: int, **more: Any) -> dict[str, Any]:
    took_ms = 700 + 90 * (number % 5) + (9_800 if number % 31 == 17 else 0)
    rows = 1_000 + 70 * (number % 9)
    at = began + timedelta(seconds=10 * number)
    return watched.progress(
        number, at=at, took_ms=took_ms, rows=rows, lag=40 * (number % 6), **more
    )
