"""The command line of the control plane: `ftdash COMMAND`, `python -m ftdash`, or `manage.py`.

You may write a command's name with `-`, which the name of a Python module cannot contain.
"""

import os
import sys

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line

from pipelines import __version__


def main() -> None:
    if sys.argv[1:] == ["--version"]:  # Django would print its own
        print(f"ftdash {__version__}")
        return
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ftdash.settings")
    name = sys.argv[1:2]
    words = [*sys.argv[:1], *(n.replace("-", "_") for n in name), *sys.argv[2:]]
    try:
        execute_from_command_line(words)
    except ImproperlyConfigured as problem:  # its message is a sentence of `ftdash.settings`
        print(f"ftdash cannot start. {problem}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
