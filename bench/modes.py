"""The modes that a benchmark of the whole engine can run in, by the names of its option."""

import argparse

ALL = "all"
_MODE = "execution.checkpointing.mode"
_UNALIGNED = {"execution.checkpointing.unaligned.enabled": "true"}

MODES: dict[str, dict[str, str]] = {
    "aligned": {},  # exactly once, as all modes that do not say something else
    "unaligned": _UNALIGNED,
    "aligned-with-timeout": {
        **_UNALIGNED,
        "execution.checkpointing.aligned-checkpoint-timeout": "100 ms",
    },
    "at-least-once": {_MODE: "AT_LEAST_ONCE"},
    "at-most-once": {_MODE: "AT_MOST_ONCE"},
}


def add_mode_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mode",
        choices=(*MODES, ALL),
        default="aligned",
        help="of checkpoints; all: one after the other, told apart in by_mode",
    )


def modes_of(options: argparse.Namespace) -> tuple[str, ...]:
    return tuple(MODES) if options.mode == ALL else (options.mode,)
