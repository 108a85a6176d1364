"""What a driver shows of itself, about once a second: that it lives, and that it gets on."""

import msgspec

LONG_STEP_MAX_MS = 600_000.0
"""Before the first turn of its loop, between two attempts and at the end a driver does work that
takes minutes, such as reading a large point. It moves as it gets from one file to the next."""


class DriverSign(msgspec.Struct, frozen=True, kw_only=True):
    """Holds no time: a reader measures by its own clock how long nothing has moved."""

    epoch: int  # of the driver's lease
    sequence: int  # grows with every sign: the process runs and its disk takes writes
    moves: int  # grows with every move of its control loop
    is_long_step: bool = False  # the loop does work that takes minutes
