"""Checks the excuse of a snippet that names a test: that test has to do what the snippet does."""

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

from django.core.management import get_commands, load_command_class

from tests.documented_snippets import PYTHON, ROOT, Snippet

CLAIMED = re.compile(r"[\w/]*\btest(?:s\b|_)[\w/.]*")
COMMAND = re.compile(r"(?:\bftdash|\bmanage\.py) ([a-z][\w-]*)(?![\w./-])(?: ([a-z][\w-]*))?")
OURS = "ftdash."


def unfounded(snippet: Snippet) -> list[str]:
    """Returns one sentence for each claim of the excuse that the tests do not bear out.

    Each test that the excuse speaks of is a file that exists. Each command of ftdash in the snippet
    is among the strings of these files, with its subcommand; so is each name that Python imports.
    """
    tests = CLAIMED.findall(snippet.excuse)
    missing = [f"{test} is no file" for test in tests if not (ROOT / test).is_file()]
    if missing or not tests:
        return missing
    known = {word for test in tests for word in _words(ROOT / test)}
    return [f"{word} is not in {' or '.join(tests)}" for word in _main_words(snippet) - known]


def _main_words(snippet: Snippet) -> set[str]:
    return set(_imported(snippet) if snippet.language == PYTHON else _commands(snippet))


def _imported(snippet: Snippet) -> Iterator[str]:
    for node in ast.walk(ast.parse(snippet.text)):
        if isinstance(node, ast.ImportFrom):
            yield from (each.name for each in node.names)


def _commands(snippet: Snippet) -> Iterator[str]:
    apps = get_commands()
    for command, argument in COMMAND.findall(snippet.text):
        name = command.replace("-", "_")
        app = str(apps.get(name, OURS))  # a command that does not exist is in no test either
        if app.startswith(OURS):
            yield name
        if argument in _subcommands(app, name):
            yield argument


def _subcommands(app: str, command: str) -> set[str]:
    if command not in get_commands():
        return set()
    parser = load_command_class(app, command).create_parser("manage.py", command)
    choosing = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    return {name for each in choosing for name in each.choices}


def _words(test: Path) -> Iterator[str]:
    """Yields the names of a file, and the words of its strings that are not docstrings."""
    tree = ast.parse(test.read_text())
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str() as text) if id(node) not in said:
                yield from text.split()
            case ast.Name(id=name) | ast.alias(name=name):
                yield name
