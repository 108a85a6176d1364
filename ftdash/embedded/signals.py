"""Being asked to end: Ctrl-C, SIGTERM and a closed terminal all become KeyboardInterrupt, once."""

import signal
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM)


def end_when_asked() -> None:
    """Set explicitly, as a job in the background of a script starts with SIGINT ignored.

    SIGHUP stays ignored where it was: whoever said nohup wants to outlive the terminal.
    """
    hangup = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    for number in (*ENDING, signal.SIGHUP) if hangup else ENDING:
        signal.signal(number, end_once)


def end_once(number: int, _: FrameType | None) -> None:
    # Ending takes a bounded time; an impatient second Ctrl-C must not leave it half done.
    for each in (*ENDING, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt(signal.Signals(number).name)
