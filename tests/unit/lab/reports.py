"""A plausible lab report, for tests of the code that uses reports."""

import msgspec

from pipelines.domain.guarantees import EXACTLY_ONCE
from pipelines.lab.options import LabOptions
from pipelines.lab.report import CostRun, FaultRun, Host, LabReport, ModeReport

FAULTED = FaultRun(
    lost=0,
    doubled=0,
    counted_short=0,
    counted_over=0,
    killed_at=[4_321],
    recovery_ms=[640],
    read_again=1_200,
    latency_p50_ms=210.0,
    latency_p99_ms=1_050.0,
)
COST = CostRun(
    lost=0,
    doubled=0,
    views_per_s=120_000.0,
    checkpoints=5,
    barriers=40,
    barriers_expected=40,
    acknowledgements=30,
    acker_ids=0,
    acker_ids_expected=0,
    acker_messages=0,
    control_per_record=0.004,
)


def mode(name: str, *, broken: list[str] | None = None, acker_ids: int = 0) -> ModeReport:
    return ModeReport(
        mode=name,
        promise=EXACTLY_ONCE,
        reason="checkpoints are exact",
        faulted=FAULTED,
        cost=msgspec.structs.replace(COST, acker_ids=acker_ids),
        broken=broken or [],
    )


def report(*modes: ModeReport) -> LabReport:
    return LabReport(
        began_at="2026-11-21T14:02:11+00:00",
        took_s=31.4,
        host=Host(slots="2 processes", machine="Linux x86_64", cores=2, python="3.11.9"),
        options=LabOptions(records=10_000),
        steps=2,
        kill_places=[4_000],
        modes=list(modes),
    )
