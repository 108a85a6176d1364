"""Whose the named points are: the driver's, a slot's in a checkpoint, a slot's in a restore."""

from pipelines.domain.faults import FaultPoint

DRIVER_POINTS = (
    FaultPoint.ACKNOWLEDGED,
    FaultPoint.PUBLISHED,
    FaultPoint.RESTARTING,
    FaultPoint.REWOUND,
)
RESTORE_POINTS = (FaultPoint.RESTORING, FaultPoint.RESTORED)
CHECKPOINT_POINTS = tuple(p for p in FaultPoint if p not in (*DRIVER_POINTS, *RESTORE_POINTS))
