"""`manage.py flows [NAME]`: the pipelines that can be started here, and the parameters of one.

A pipeline that cannot be used is listed with the reason. If you name such a pipeline, the command
ends with that sentence and the author's traceback.
"""

from argparse import ArgumentParser
from typing import Any

import msgspec
from django.core.management.base import CommandError

from ftdash.installed_command import QuickCommand, explained
from pipelines.domain.errors import Rejected

REQUIRED = "required"


class Command(QuickCommand):
    help = "List the pipelines that can be started, or the parameters of one."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "name", nargs="?", help="a declared name, or package.module:NAME (default: list all)"
        )
        parser.add_argument("--json", action="store_true", help="answer in JSON, for scripts")

    def handle(self, *args: Any, **options: Any) -> None:
        name = options["name"]
        try:
            rows = _all() if name is None else _parameters(name)
        except Rejected as refusal:
            raise CommandError(explained(refusal), returncode=2) from refusal
        if options["json"]:
            self.stdout.write(msgspec.json.encode(rows).decode())
            return
        for row in rows:
            self.stdout.write("  ".join(text for text in row.values() if text))


def _all() -> list[dict[str, str]]:
    from pipelines.flows.finding import declared_flows

    return [_row(name, reference) for name, reference in declared_flows().items()]


def _row(name: str, reference: str) -> dict[str, str]:
    from pipelines.flows.finding import find_flow

    try:
        summary = find_flow(name).summary
    except Rejected as problem:
        return {"name": name, "reference": reference, "problem": str(problem)}
    return {"name": name, "reference": reference, "summary": summary}


def _parameters(name: str) -> list[dict[str, str]]:
    from pipelines.flows.finding import find_flow

    return [
        {
            "name": each.name,
            "default": REQUIRED if each.default is None else f"default {each.default!r}",
            "choices": " | ".join(each.choices),
            "help": each.help,
        }
        for each in find_flow(name).parameters
    ]
