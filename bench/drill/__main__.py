"""How long does the fleet page need to name the cause of an incident, and where is the next step?

Expected: a driver writes an event to its journal at once, the projector folds it within 0.3 s and
judges once a second, and an open page then gets an update. So the page names a cause some 2 s after
the run notices it. The next step is a button beside the cause: two clicks with its form.

The drill stages each incident on a real pipeline in a separate installation, and reads the fleet
page in a real browser. An incident passes if one notice says the expected within 10 s, or within
the timeout in force plus 5 s, and the expected step takes at most 3 clicks. `--healthy-minutes N`
then runs five pipelines under load, and no notice may appear.
"""

import os
import shutil
import tempfile
from pathlib import Path

import django

from bench.benchmark import Bar, Benchmark, at_least, at_most
from ftdash.embedded.installation import environment_of
from ftdash.embedded.outcome import end_when_asked
from ftdash.embedded.supervisor import LEDGER_NAME, end_all

CLICKS_MAX = 3
OWN_SETTINGS = "bench.drill.light_settings"


def bars(chosen: int) -> tuple[Bar, ...]:
    return (
        at_least("passed", chosen),
        at_most("seconds_over_limit_max", 0),
        at_most("clicks_max", CLICKS_MAX),
        at_most("healthy_raised", 0),
    )


def main() -> None:
    benchmark = Benchmark("drill", __doc__)
    add = benchmark.options.add_argument
    add("--only", action="append", help="an incident; give it several times for several")
    add("--no-incidents", action="store_true", help="only the pipelines that are well")
    add("--healthy-minutes", type=float, default=0.0, help="how long five pipelines run unharmed")
    add("--healthy-pipelines", type=int, default=5)
    add("--without-spark", action="store_true", help="drivers host their slots, for tests")
    add("--pictures", type=Path, help="directory for pictures of each incident")
    options = benchmark.options.parse()
    home = Path(tempfile.mkdtemp(prefix="ftdash-drill-"))
    # Django reads its settings once, when it loads, so the home has to come first.
    os.environ |= environment_of(home, os.getpid(), os.environ)
    os.environ["FTDASH_STORAGE_ROOTS"] = str(home)
    os.environ["FTDASH_PIPELINE_VARIABLES"] = "FTDASH_DRILL_*"
    if options.without_spark:
        os.environ["DJANGO_SETTINGS_MODULE"] = OWN_SETTINGS
    django.setup()
    from bench.drill.incidents import INCIDENTS
    from bench.drill.running import drill

    chosen = options.only or ([] if options.no_incidents else list(INCIDENTS))
    if unknown := [each for each in chosen if each not in INCIDENTS]:
        benchmark.options.error(
            f"there is no incident {unknown[0]}; choose of {', '.join(INCIDENTS)}"
        )
    end_when_asked()
    try:
        fields = drill(
            home,
            chosen,
            options.healthy_minutes,
            options.healthy_pipelines,
            options.pictures,
        )
        benchmark.report(fields, bars(len(chosen)))
    finally:
        if (home / LEDGER_NAME).exists():
            end_all(home / LEDGER_NAME)
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
