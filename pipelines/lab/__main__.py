"""The lab as a program: `python -m pipelines.lab`. Progress on standard error.

Exit status 0: every mode kept what it promises. 1: one did not. 2: the lab could not be run.
"""

import argparse
import sys

import msgspec

from pipelines.domain.errors import Rejected
from pipelines.lab.options import add_options, options_of

EXIT_BROKEN, EXIT_NOT_RUN = 1, 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.lab", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    add_options(parser)
    given = parser.parse_args()
    # Loads the engine, which a question about the options does without.
    from pipelines.lab import trial
    from pipelines.lab.facts import TrialFailed
    from pipelines.lab.lab import run_lab
    from pipelines.lab.sentences import sentences
    from pipelines.lab.slot_processes import forks

    forks.set_forkserver_preload([trial.__name__])
    try:
        report = run_lab(options_of(given), _say)
    except (Rejected, TrialFailed) as problem:
        _say(str(problem))
        return EXIT_NOT_RUN
    print(msgspec.json.encode(report).decode() if given.json else "\n".join(sentences(report)))
    return 0 if report.is_kept else EXIT_BROKEN


def _say(progress: str) -> None:
    print(progress, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
