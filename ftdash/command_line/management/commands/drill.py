"""`manage.py drill`: incidents staged on real pipelines, and read on the pages in a real browser.

The program is `bench/drill/`, because it needs what tests need; it reads its own options.
"""

from ftdash.installed_command import QuickCommand, run_program


class Command(QuickCommand):
    help = "Stage incidents on real pipelines; see how soon the pages name each, and the next step."

    def run_from_argv(self, argv: list[str]) -> None:
        run_program("bench.drill", argv[2:])
