"""Ends everything an embedded installation started once its owner is gone, for whatever reason.

It is a process of its own that waits on a pipe which only the owner holds open. A closed pipe means
that the owner has ended, even by SIGKILL. `python -m ftdash.embedded.guardian LEDGER`
"""

import signal
import sys
from pathlib import Path

from ftdash.embedded.supervisor import end_all


def main(ledger: Path) -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    sys.stdin.buffer.read()  # returns when the last writer is gone
    end_all(ledger)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
