"""Draws inputs that a parser may meet, and first replays those that a parser once failed on.

A failure prints the line to add to `tests/kept_examples.py`. The next runs on this machine begin
with the same input (`var/fuzz`). `FTDASH_FUZZ_EXAMPLES` sets how many inputs are drawn.
"""

import functools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.kept_examples import KEPT

COUNT = "FTDASH_FUZZ_EXAMPLES"
EXAMPLES = int(os.environ.get(COUNT, "40"))
RECENT = Path(__file__).parents[1] / "var" / "fuzz"
"""The inputs that failed on this machine; a directory for each parser."""

VALUE = re.compile(rb'"[^"]*"|-?[0-9]+|true|false|null')
"""A value in a text of JSON, TOML or the like."""

DEEP = 2_000
ODD = (
    *(b"null", b"true", b"-1", b"1e400", b"99999999999999999999", b"1" * 5_000),
    *(b'""', b'"\\u0000"', b'"../../x"', b"[]", b"{}", b"[" * DEEP + b"]" * DEEP),
)
"""Values that are at home in few places."""

Test = Callable[..., None]


@st.composite
def changed(draw: st.DrawFn, valid: bytes) -> bytes:
    """Draws `valid` with bytes or values replaced, a part cut out or doubled, or cut off."""
    content = bytearray(valid)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        match draw(st.sampled_from(["value", "replace", "cut", "double", "end"])):
            case "value":
                if found := list(VALUE.finditer(content)):
                    begin, end = draw(st.sampled_from(found)).span()
                    content[begin:end] = draw(st.sampled_from(ODD))
            case "replace":
                content[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case "cut":
                del content[at : at + draw(st.integers(1, 8))]
            case "double":
                content[at:at] = content[at : at + draw(st.integers(1, 8))]
            case "end":
                del content[at:]
    return bytes(content)


def anything_like(*valid: bytes) -> st.SearchStrategy[bytes]:
    return st.one_of(st.binary(max_size=200), *map(changed, valid))


def drawn(parser: str, content: st.SearchStrategy[bytes]) -> Callable[[Test], Test]:
    """Calls a test with each kept example of `parser` as `content`, and then with drawn ones."""

    def decorated(test: Test) -> Test:
        @functools.wraps(test)
        def noted(*args: Any, **given_: Any) -> None:
            try:
                test(*args, **given_)
            except BaseException as error:  # pytest's failures are no Exception
                error.add_note(how_to_keep(parser, given_["content"]))
                raise

        found = given(content=content)(noted)
        for kept in reversed(KEPT.get(parser, [])):
            found = example(content=kept)(found)
        return settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=DirectoryBasedExampleDatabase(RECENT / parser.replace(" ", "-")),
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        )(found)

    return decorated


def how_to_keep(parser: str, content: bytes) -> str:
    return f"To keep this input, add to KEPT[{parser!r}] in tests/kept_examples.py: {content!r}"


def fuzz(parser: str, valid: bytes, check: Callable[[bytes], object]) -> None:
    """Calls `check` with kept examples, with arbitrary bytes, and with `valid` and its changes."""

    @drawn(parser, anything_like(valid))
    def one(content: bytes) -> None:
        check(content)

    check(valid)
    one()


def only_raising(
    parse: Callable[[bytes], object], *errors: type[Exception]
) -> Callable[[bytes], None]:
    """Returns a check: `parse` returns, or raises one of `errors` with a text."""

    def check(content: bytes) -> None:
        try:
            parse(content)
        except errors as error:
            if not str(error).strip():
                raise AssertionError("the error does not say what is wrong") from error

    return check
