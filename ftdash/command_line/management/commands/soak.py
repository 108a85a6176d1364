"""`manage.py soak`: real pipelines under faults for hours, their output checked all the time.

The program is `bench/soak/`, because it needs what tests need; it reads its own options.
"""

from ftdash.installed_command import QuickCommand, run_program


class Command(QuickCommand):
    help = "Run pipelines under seeded faults; check their output, and that nothing grows."

    def run_from_argv(self, argv: list[str]) -> None:
        run_program("bench.soak", argv[2:])
