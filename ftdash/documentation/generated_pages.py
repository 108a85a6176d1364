"""The pages generated from the code: settings, commands, REST API, metrics, states of a run.

MkDocs calls `on_files` (a hook, see mkdocs.yml) and gets the pages as text, so no generated file is
ever stored or goes stale. Diagrams of states are drawn as SVG from the tables of allowed moves:
the column of a state is its longest path from the first state; moves back run below the boxes.
"""

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Set
from graphlib import TopologicalSorter
from itertools import groupby
from typing import Any
from xml.etree import ElementTree

import django
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from pipelines.domain.settings.readers import Definition

Moves = Mapping[str, Set[str]]

BOX = (132, 34)  # width and height of a state, in pixels
GAP = (46, 60)
MARGIN = 14


def state_diagram(moves: Moves, title: str) -> str:
    """Returns the SVG element as text. The first state of the table is the initial one."""
    places = _places(moves)
    width = MARGIN + max(x for x, _ in places.values()) + BOX[0] + MARGIN
    height = MARGIN + max(y for _, y in places.values()) + BOX[1] + MARGIN
    svg = ElementTree.Element(
        "svg",
        {"viewBox": f"0 0 {width} {height}", "role": "img", "class": "state-diagram"},
    )
    ElementTree.SubElement(svg, "title").text = title
    _add_arrow_head(svg)
    for state, successors in moves.items():
        for successor in sorted(successors):
            _add_move(svg, state, successor, places)
    for state, (x, y) in places.items():
        _add_state(svg, state, x, y)
    return ElementTree.tostring(svg, encoding="unicode")


def _places(moves: Moves) -> dict[str, tuple[int, int]]:
    """The upper left corner of each state."""
    layers = _layers(moves)
    places = {}
    for layer, states in groupby(sorted(moves, key=layers.__getitem__), key=layers.__getitem__):
        for row, state in enumerate(states):
            x = MARGIN + layer * (BOX[0] + GAP[0])
            y = MARGIN + row * (BOX[1] + GAP[1]) + (layer % 2) * (BOX[1] + GAP[1]) // 2
            places[state] = (x, y)
    return places


def _layers(moves: Moves) -> dict[str, int]:
    """The longest path to each state, over moves to states later in the table."""
    order = {state: index for index, state in enumerate(moves)}
    before: dict[str, set[str]] = {state: set() for state in moves}
    for state, successors in moves.items():
        for successor in successors:
            if order[successor] > order[state]:
                before[successor].add(state)
    layers: dict[str, int] = {}
    for state in TopologicalSorter(before).static_order():
        layers[state] = max((layers[each] + 1 for each in before[state]), default=0)
    return layers


def _add_arrow_head(svg: ElementTree.Element) -> None:
    marker = ElementTree.SubElement(
        ElementTree.SubElement(svg, "defs"),
        "marker",
        {"id": "arrow", "viewBox": "0 0 8 8", "refX": "8", "refY": "4", "orient": "auto"}
        | {"markerWidth": "8", "markerHeight": "8"},
    )
    ElementTree.SubElement(marker, "path", {"d": "M0,0 L8,4 L0,8 z", "fill": "currentColor"})


def _add_move(
    svg: ElementTree.Element, state: str, successor: str, places: dict[str, tuple[int, int]]
) -> None:
    (x1, y1), (x2, y2) = places[state], places[successor]
    if x2 > x1:
        start, end = (x1 + BOX[0], y1 + BOX[1] // 2), (x2, y2 + BOX[1] // 2)
        middle = (start[0] + end[0]) // 2
        bends = f"C{middle},{start[1]} {middle},{end[1]}"
    else:  # back: below the boxes
        start, end = (x1 + BOX[0] // 2, y1 + BOX[1]), (x2 + BOX[0] // 2, y2 + BOX[1])
        depth = max(start[1], end[1]) + GAP[1]
        bends = f"C{start[0]},{depth} {end[0]},{depth}"
    path = f"M{start[0]},{start[1]} {bends} {end[0]},{end[1]}"
    ElementTree.SubElement(
        svg,
        "path",
        {"d": path, "fill": "none", "stroke": "currentColor", "marker-end": "url(#arrow)"}
        | {"data-from": state, "data-to": successor},
    )


def _add_state(svg: ElementTree.Element, state: str, x: int, y: int) -> None:
    box = {"x": str(x), "y": str(y), "width": str(BOX[0]), "height": str(BOX[1]), "rx": "8"}
    colours = {"fill": "var(--md-code-bg-color)", "stroke": "currentColor"}
    ElementTree.SubElement(svg, "rect", box | colours)
    text = ElementTree.SubElement(
        svg,
        "text",
        {"x": str(x + BOX[0] // 2), "y": str(y + BOX[1] // 2 + 5), "text-anchor": "middle"}
        | {"font-size": "13", "fill": "currentColor"},
    )
    text.text = state


OUR_COMMANDS = "ftdash."
METHODS = ("get", "post", "put", "patch", "delete")
DJANGOS = {"help", "version", "verbosity", "settings", "pythonpath", "traceback", "skip_checks"} | {
    "no_color",
    "force_color",
}
"""Arguments that every Django command has."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to those of `docs/`."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ftdash.settings")
    django.setup()
    for name, page in PAGES.items():
        files.append(File.generated(config, f"{name}.md", content="\n".join(page())))
    return files


def settings_page() -> Iterator[str]:
    from pipelines.domain.settings.parsing import DEFINITIONS

    yield "# Settings\n"
    yield (
        "Every setting of a pipeline, with its default. Give settings with"
        " `manage.py pipeline submit NAME --set KEY=VALUE` or in the form that starts a pipeline."
        " A setting marked **live** can change while the pipeline runs"
        " (`manage.py pipeline set NAME KEY=VALUE`). Keys and meanings are Flink's where Flink has"
        " the setting; the text says where a default differs."
    )
    by_group = sorted(DEFINITIONS, key=_group)
    for group, definitions in groupby(by_group, key=_group):
        yield f"\n## {group}\n"
        for each in definitions:
            live = " · **live**" if each.changes_live else ""
            yield f"### `{each.key}`\n"
            yield f"Default: `{each.default}`{live}\n"
            yield f"{_plain(each.help)}\n"


def _group(definition: Definition) -> str:
    """The first two words of a dotted key: `execution.checkpointing`."""
    words = definition.key.split(".")
    return ".".join(words[:2]) if len(words) > 2 else words[0]


def commands_page() -> Iterator[str]:
    from django.core.management import get_commands, load_command_class

    yield "# Commands\n"
    yield (
        "Each command is `manage.py NAME`. `--help` prints the same text. Commands that read or"
        " change an installation work on the one in `FTDASH_HOME`.\n"
    )
    ours = {name: app for name, app in get_commands().items() if str(app).startswith(OUR_COMMANDS)}
    for name, app in sorted(ours.items()):
        parser = load_command_class(str(app), name).create_parser("manage.py", name)
        yield f"## `{name}`\n"
        yield f"{_plain(parser.description or '')}\n"
        yield from _arguments(parser)
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from _subcommands(name, action)


def _subcommands(command: str, action: Any) -> Iterator[str]:
    helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
    for name, parser in action.choices.items():
        yield f"### `{command} {name}`\n"
        yield f"{_plain(parser.description or helps.get(name, ''))}\n"
        yield from _arguments(parser)


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    """A table of the command's own arguments; Django's common ones are left out."""
    rows = [
        f"| `{_spelled(action)}` | {_cell(action.help or '')} | {_default(action)} |"
        for action in parser._actions
        if action.dest not in DJANGOS and not isinstance(action, argparse._SubParsersAction)
    ]
    if rows:
        yield from ("| argument | meaning | default |", "|---|---|---|", *rows, "")


def _spelled(action: argparse.Action) -> str:
    takes_value = action.nargs != 0
    value = str(action.metavar or action.dest.upper()) if takes_value else ""
    if action.choices is not None and takes_value:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    names = ", ".join(action.option_strings)
    return _cell(f"{names} {value}".strip())


def _default(action: argparse.Action) -> str:
    is_shown = action.default not in (None, argparse.SUPPRESS, False, "", [])
    return f"`{_cell(str(action.default))}`" if is_shown else ""


def rest_page() -> Iterator[str]:
    from ftdash.api.own import urls  # noqa: F401  # gives the API its addresses
    from ftdash.api.own.door import api

    schema: dict[str, Any] = api.get_openapi_schema(path_prefix="/api/")
    yield "# REST API\n"
    yield (
        "Every address below `/api/`, from the OpenAPI description that a running dashboard serves"
        " at `/api/openapi.json`. [How to call the REST API](api.md) explains tokens, rights and"
        " errors.\n"
    )
    operations = [
        (address, method, operation)
        for address, methods in sorted(schema["paths"].items())
        for method, operation in methods.items()
        if method in METHODS
    ]
    for address, method, operation in operations:
        yield f"## `{method.upper()} {address}`\n"
        yield f"{_plain(operation.get('description') or operation.get('summary', ''))}\n"
        yield from _parameters(operation)
        yield f"{_needs(operation)}\n"


def _parameters(operation: dict[str, Any]) -> Iterator[str]:
    rows = [
        f"| `{each['name']}` | {each['in']} | {_type(each.get('schema', {}))} |"
        f" {'yes' if each.get('required') else 'no'} |"
        for each in operation.get("parameters", [])
    ]
    if rows:
        yield from ("| parameter | in | type | required |", "|---|---|---|---|", *rows, "")


def _type(schema: dict[str, Any]) -> str:
    """The type in JSON schema's words: `string`, `integer or null`, or the allowed values."""
    if "enum" in schema:
        return _cell(", ".join(f"`{choice}`" for choice in schema["enum"]))
    options = [_type(option) for option in schema.get("anyOf", [])]
    return " or ".join(options) or str(schema.get("type", "object"))


def _needs(operation: dict[str, Any]) -> str:
    needs = [
        f"a {kind} with `{', '.join(rights)}`"
        for alternative in operation.get("security", [])
        for kind, rights in alternative.items()
    ]
    return f"Needs {' or '.join(needs)}." if needs else ""


def metrics_page() -> Iterator[str]:
    from ftdash.prometheus.families import FAMILIES

    yield "# Metrics\n"
    yield (
        "Every metric that `/metrics` serves. [Monitoring with Prometheus]"
        "(../how-to/monitoring.md) shows how to scrape it. Names that start with `flink_` are those"
        " of Flink's Prometheus reporter, so that boards and alerts made for Flink work.\n"
    )
    yield from ("| metric | type | labels | meaning |", "|---|---|---|---|")
    for family in FAMILIES.values():
        kind = "counter" if family.is_counter else "gauge"
        labels = ", ".join(f"`{label}`" for label in family.labels)
        yield f"| `{family.name}` | {kind} | {labels} | {_cell(family.help)} |"


def run_states_page() -> Iterator[str]:
    from pipelines.protocol.restart import MOVES

    yield "# States of a run\n"
    yield (
        "A run moves only along these arrows; the engine refuses every other move as a bug of its"
        " own. The names are Flink's.\n"
    )
    yield state_diagram(
        dict[str, Set[str]](MOVES.items()), "States of a run and the moves between them"
    )
    yield from ("", "| state | may become |", "|---|---|")
    for state, successors in MOVES.items():
        yield f"| `{state}` | {', '.join(f'`{each}`' for each in sorted(successors)) or 'final'} |"


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")


def _plain(text: str) -> str:
    """Escapes angle brackets, which Markdown would take for HTML."""
    return " ".join(text.split()).replace("<", "&lt;")


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "reference/settings": settings_page,
    "reference/commands": commands_page,
    "reference/rest": rest_page,
    "reference/metrics": metrics_page,
    "reference/run-states": run_states_page,
}
