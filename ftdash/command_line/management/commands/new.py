"""`ftdash new NAME`: a project with a pipeline of its own, a test that kills it, and CI.

Django's `startproject` fills in the template, which is package data next to this package.
"""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.templates import TemplateCommand

TEMPLATE = Path(__file__).parents[2] / "project_template"


class Command(TemplateCommand):
    help = "Make a project for a pipeline of your own: pipeline, test, README, CI."
    missing_args_message = "Name the project, such as: ftdash new shop"
    rewrite_template_suffixes = (("-tpl", ""),)

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="of the project, its package and its pipeline")
        parser.add_argument(
            "directory", nargs="?", help="where it is made; it has to exist (default: ./NAME)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Raises CommandError if the name is not a Python name, or something is already there."""
        name, target = options.pop("name"), options.pop("directory")
        filled = {"extensions": ["py", "toml", "md", "yml"], "files": [], "exclude": []}
        super().handle("project", name, target, **options, **filled, template=str(TEMPLATE))
        place = Path(target or name)
        self.stdout.write(f"Made {place}. Go there, pip install -e '.[test]', and run pytest.")
