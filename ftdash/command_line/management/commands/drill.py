"""`manage.py drill`: incidents staged on real pipelines, and read on the pages in a real browser.

The program is `bench/drill/`, because it needs what tests need; it knows its options.
"""

from django.core.management.base import BaseCommand

from ftdash.command_line.management.commands.bench import run_program


class Command(BaseCommand):
    help = "Stage incidents on real pipelines; see how soon the pages name each, and the next step."

    def run_from_argv(self, argv: list[str]) -> None:
        run_program("drill", argv[2:])
