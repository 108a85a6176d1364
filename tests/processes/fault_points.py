"""Whose the named points are: the driver's, a slot's in a checkpoint, a slot's in a restore."""

from pipelines.domain.faults import FaultPoint

RECOVERY_POINTS = (FaultPoint.RESTARTING, FaultPoint.REWINDING, FaultPoint.REWOUND)
"""Of the driver; only at the first one a slot may still live."""

DRIVER_POINTS = (FaultPoint.ACKNOWLEDGED, FaultPoint.PUBLISHED, *RECOVERY_POINTS)
RESTORE_POINTS = (FaultPoint.RESTORING, FaultPoint.OPENED, FaultPoint.RESTORED)
CHECKPOINT_POINTS = tuple(p for p in FaultPoint if p not in (*DRIVER_POINTS, *RESTORE_POINTS))
