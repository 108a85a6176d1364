"""Where in the input a slot is killed. Follows from a seed; never from the clock."""

import random

FROM, TO = 0.4, 0.8
"""Part of its stretch of the input in which a fault lies, so that no two come close together and
the run has begun to take checkpoints before the first one."""


def kill_places(seed: int, records: int, faults: int) -> tuple[int, ...]:
    """Numbers of views, ascending: whoever parses one of these, or a later one, first, dies."""
    rng = random.Random(seed)
    stretch = records / max(faults, 1)
    return tuple(int((index + rng.uniform(FROM, TO)) * stretch) for index in range(faults))
