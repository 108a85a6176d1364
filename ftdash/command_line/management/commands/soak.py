"""`manage.py soak`: real pipelines under faults for hours, their output checked all the time.

The program is `bench/soak/`, because it needs what tests need; it knows its options.
"""

import os
import sys

from django.conf import settings

from ftdash.installed_command import QuickCommand


class Command(QuickCommand):
    help = "Run pipelines under seeded faults; check their output, and that nothing grows."

    def run_from_argv(self, argv: list[str]) -> None:
        """The program takes the place of this process, so that Ctrl-C ends it in order."""
        os.chdir(settings.BASE_DIR)
        os.execv(sys.executable, [sys.executable, "-m", "bench.soak", *argv[2:]])
