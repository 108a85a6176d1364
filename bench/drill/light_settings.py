"""The settings of an installation whose drivers host their slots themselves, without Spark."""

import sys

from ftdash.settings import *  # noqa: F403

DRIVER_COMMAND = [sys.executable, "-m", "tests.processes.supervised_driver"]
