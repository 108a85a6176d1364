"""The lab as a program: `python -m pipelines.lab`. Progress on standard error.

Exit status 0: every mode kept what it promises. 1: one did not. 2: the lab could not be run.
"""

import argparse
import sys
import traceback

import msgspec

from pipelines.domain.errors import Rejected
from pipelines.lab.options import LabOptions, add_options, options_of
from pipelines.lab.report import LabReport, sentences

EXIT_BROKEN, EXIT_NOT_RUN = 1, 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pipelines.lab", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    add_options(parser)
    given = parser.parse_args()
    try:
        report = _ran(options_of(given))
    except Rejected as refusal:
        _say(str(refusal))
        return EXIT_NOT_RUN
    except Exception:  # status 1 would accuse a mode
        traceback.print_exc()
        return EXIT_NOT_RUN
    print(msgspec.json.encode(report).decode() if given.json else "\n".join(sentences(report)))
    return 0 if report.is_kept else EXIT_BROKEN


def _ran(options: LabOptions) -> LabReport:
    """Raises Rejected, also if a run did not go as planned."""
    # Imported here because it loads the engine, which help and option checks do not need.
    from pipelines.lab import lab
    from pipelines.lab.report import TrialFailed

    try:
        return lab.run_lab(options, _say)
    except TrialFailed as failure:
        raise Rejected(str(failure)) from failure


def _say(progress: str) -> None:
    print(progress, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
