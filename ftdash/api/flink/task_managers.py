"""Makes Flink's bodies about task managers: each connected slot is one, with one slot.

Values that a Java process has and a slot lacks are 0.
"""

from dataclasses import dataclass

import msgspec

from ftdash.api.flink import shapes_vertices as shapes
from ftdash.api.flink.names import epoch_ms, job_id, task_manager_id
from ftdash.runs.queries import runs as run_queries
from ftdash.runs.queries.runs import RunFacts


@dataclass(frozen=True, slots=True)
class Connected:
    """A slot that is connected to the driver of a run."""

    run: RunFacts
    slot: int


def connected() -> list[shapes.TaskManager]:
    return [_body(each) for each in _all()]


def find(manager: str) -> Connected | None:
    """None: no slot of that name is connected."""
    named = (each for each in _all() if task_manager_id(each.run.run_id, each.slot) == manager)
    return next(named, None)


def detail(found: Connected) -> shapes.TaskManagerDetail:
    return shapes.TaskManagerDetail(
        **msgspec.structs.asdict(_body(found)),
        allocated_slots=[
            shapes.AllocatedSlot(
                job_id=job_id(found.run.run_id),
                resource=shapes.Resources(),
                assigned_tasks=len(found.run.vertices),
            )
        ],
        metrics=shapes.TaskManagerMetrics(),
    )


def _all() -> list[Connected]:
    return [Connected(run, slot) for run in run_queries.runs() for slot in sorted(run.slots)]


def _body(found: Connected) -> shapes.TaskManager:
    run, slot = found.run, found.slot
    return shapes.TaskManager(
        id=task_manager_id(run.run_id, slot),
        path=f"{run.slots[slot]}/{run.pipeline}/{slot}",
        data_port=-1,
        jmx_port=-1,
        time_since_last_heartbeat=0 if run.last_event_at is None else epoch_ms(run.last_event_at),
        slots_number=1,
        free_slots=0,
        assigned_tasks=len(run.vertices),
        total_resource=shapes.Resources(),
        free_resource=shapes.Resources(),
        hardware=shapes.Hardware(),
        memory_configuration=shapes.MemoryConfiguration(),
    )
