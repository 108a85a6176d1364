"""The driver's thread that shows signs of life, and that ends a driver which has lost its run.

A driver that was stopped may go on in the middle of anything, such as setting output aside, and
would notice only at its next line of the journal. This thread looks at the lease first, at most a
period after the process goes on.
"""

import logging
import threading
from collections.abc import Callable

from pipelines.bus.lease import Lease, LeaseLost, give_sign
from pipelines.domain.run import DriverSign
from pipelines.runtime.master.control_loop import ControlLoop

PERIOD_S = 1.0

log = logging.getLogger("ftdash.driver")


class SignsOfLife(threading.Thread):
    """Guarantee: gives no sign after another driver has taken the run over; then calls `on_lost`
    once, on this thread."""

    def __init__(
        self, lease: Lease, loop: ControlLoop, on_lost: Callable[[LeaseLost], None]
    ) -> None:
        super().__init__(name="signs-of-life", daemon=True)
        self._lease = lease
        self._loop = loop
        self._on_lost = on_lost
        self._sequence = 0
        self._closed = threading.Event()

    def run(self) -> None:
        while not self._closed.is_set():
            try:
                self._give()
            except LeaseLost as lost:
                self._on_lost(lost)
                return
            except OSError as error:  # the control plane will see that there is no sign
                log.warning("No sign of life could be written: %s", error)
            self._closed.wait(PERIOD_S)

    def close(self) -> None:
        self._closed.set()

    def __enter__(self) -> "SignsOfLife":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _give(self) -> None:
        self._lease.check_held()
        self._sequence += 1
        sign = DriverSign(
            epoch=self._lease.epoch,
            sequence=self._sequence,
            moves=self._loop.moves,
            is_long_step=self._loop.is_in_long_step,
        )
        give_sign(self._lease.run_directory, sign)
