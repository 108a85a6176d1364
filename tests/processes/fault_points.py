"""The named points by owner: the driver, a slot in a checkpoint, a slot in a restore."""

from pipelines.domain.faults import FaultPoint

RECOVERY_POINTS = (FaultPoint.RESTARTING, FaultPoint.REWINDING, FaultPoint.REWOUND)
"""Points of the driver; only at the first one may a slot still be alive."""

DRIVER_POINTS = (FaultPoint.ACKNOWLEDGED, FaultPoint.PUBLISHED, *RECOVERY_POINTS)
RESTORE_POINTS = (FaultPoint.RESTORING, FaultPoint.OPENED, FaultPoint.RESTORED)
CHECKPOINT_POINTS = tuple(p for p in FaultPoint if p not in (*DRIVER_POINTS, *RESTORE_POINTS))
