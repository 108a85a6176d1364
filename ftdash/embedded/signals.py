"""Turns Ctrl-C, SIGTERM and a closed terminal into one KeyboardInterrupt."""

import signal
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM)


def end_when_asked() -> None:
    """Sets the handlers explicitly, because a script's background job starts with SIGINT ignored.

    SIGHUP stays ignored if it was: a process under nohup should outlive the terminal.
    """
    hangup = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    for number in (*ENDING, signal.SIGHUP) if hangup else ENDING:
        signal.signal(number, end_once)


def end_once(number: int, _: FrameType | None) -> None:
    # Ending takes a bounded time; an impatient second Ctrl-C must not cut it short.
    for each in (*ENDING, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt(signal.Signals(number).name)
