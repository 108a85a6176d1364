"""Reads a pipeline's parameters, which arrive as text, into a class that its author declares.

    @dataclass(frozen=True, kw_only=True)
    class Parameters:
        orders: Annotated[Path, "directory of the orders, in CSV files"]
        window: Annotated[timedelta, "length of a window"] = timedelta(minutes=1)
        token: Annotated[Secret, "of the price service"]

A field without a default is required. The start form, the command's help and the validation follow
from the class.
"""

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from pipelines.domain.errors import Rejected
from pipelines.domain.run import Parameter
from pipelines.domain.settings.readers import duration_ms
from pipelines.domain.texts import masked, remember_secret

SECRET_FORMS = "env:NAME, file:PATH or credential:NAME"
CREDENTIALS = "CREDENTIALS_DIRECTORY"
"""systemd sets this variable for a service with `LoadCredential=`."""

ALLOWING = "FTDASH_PIPELINE_VARIABLES"
"""The variable in which an administrator names what drivers get from the control plane."""

Declared = TypeVar("Declared")


@dataclasses.dataclass(frozen=True, slots=True)
class Secret:
    """A reference to the place that keeps a password, token or key.

    It is `env:NAME`, `file:PATH` or `credential:NAME`, which is a systemd credential. The text of a
    parameter is stored and shown, so it is never the secret itself.
    """

    reference: str

    def __post_init__(self) -> None:
        kind, _, place = self.reference.partition(":")
        is_one_name = kind != "credential" or (place == Path(place).name and place != "..")
        if kind not in ("env", "file", "credential") or not place or not is_one_name:
            raise ValueError(f"expected the place that keeps the secret: {SECRET_FORMS}")

    def reveal(self) -> str:
        """Reads the secret from its place on this machine. Raises Rejected if it is not there.

        From then on, this process masks it in its logs and in its reports of failures.
        """
        value = self._read()
        if remember_secret(value):
            mask_logs()
        return value

    def _read(self) -> str:
        kind, _, place = self.reference.partition(":")
        match kind:
            case "env":
                return _of_environment(place, "which keeps a secret")
            case "credential":
                directory = _of_environment(CREDENTIALS, f"which holds the credential {place}")
                return _of_file(Path(directory) / place)
        return _of_file(Path(place))


def _of_environment(name: str, what: str) -> str:
    if name not in os.environ:
        raise Rejected(
            f"The environment variable {name}, {what}, is unset in this process. Set it where the"
            f" workers of ftdash start, and name it in {ALLOWING}: only then a driver gets it."
        )
    return os.environ[name]


def _of_file(file: Path) -> str:
    try:
        return file.read_text().rstrip("\n")
    except OSError as error:
        raise Rejected(
            f"The file {file}, which keeps a secret, cannot be read: {error.strerror}."
        ) from error


def mask_logs() -> None:
    """Masks every record that this process logs, with its traceback. A second call does nothing."""
    make = logging.getLogRecordFactory()
    if not isinstance(make, _MaskingFactory):
        logging.setLogRecordFactory(_MaskingFactory(make))


@dataclasses.dataclass(frozen=True, slots=True)
class _MaskingFactory:
    make: Callable[..., logging.LogRecord]

    def __call__(self, *given: Any, **named: Any) -> logging.LogRecord:
        record = self.make(*given, **named)
        record.msg, record.args = masked(record.getMessage()), None
        if record.exc_info:
            record.exc_text = masked(logging.Formatter().formatException(record.exc_info))
        return record


def declared_parameters(declaration: type) -> tuple[Parameter, ...]:
    """Returns a dataclass's fields, in order. Raises TypeError for a type that no text can give."""
    return tuple(_parameter(each, kind) for each, kind in _fields(declaration))


def read_parameters(declaration: type[Declared], texts: Mapping[str, str]) -> Declared:
    """`texts` is {name of a field: its text}; a field without a text keeps its default.

    Raises Rejected naming the parameter and what was expected.
    """
    values = {}
    for each, kind in _fields(declaration):
        if each.name in texts:
            values[each.name] = _read(each.name, kind, texts[each.name])
    return declaration(**values)


def _fields(declaration: type) -> list[tuple["dataclasses.Field[Any]", Any]]:
    """Returns each field, and its type with the annotations."""
    if not dataclasses.is_dataclass(declaration):
        raise TypeError(f"{declaration.__qualname__} declares parameters: make it a dataclass")
    hints = get_type_hints(declaration, include_extras=True)
    return [(each, hints[each.name]) for each in dataclasses.fields(declaration)]


def _parameter(field: "dataclasses.Field[Any]", kind: Any) -> Parameter:
    plain, help_text = _plain(kind)
    _check_readable(field.name, plain)
    return Parameter(
        field.name, _default(field), help_text, _choices(plain), is_secret=plain is Secret
    )


def _plain(kind: Any) -> tuple[Any, str]:
    """Returns the type without its annotations, and the text among the annotations."""
    if get_origin(kind) is not Annotated:
        return kind, ""
    plain, *notes = get_args(kind)
    return plain, next((note for note in notes if isinstance(note, str)), "")


def _check_readable(name: str, plain: Any) -> None:
    is_enum = isinstance(plain, type) and issubclass(plain, Enum)
    if plain in _EXPECTED or is_enum or get_origin(plain) is Literal:
        return
    known = ", ".join(each.__name__ for each in _EXPECTED)
    raise TypeError(f"the parameter {name!r} is a {plain}; take one of {known}, Literal or an Enum")


def _default(field: "dataclasses.Field[Any]") -> str | None:
    if field.default_factory is not dataclasses.MISSING:
        return _text(field.default_factory())
    return None if field.default is dataclasses.MISSING else _text(field.default)


def _text(value: Any) -> str:
    """Returns text that reads back as `value`."""
    match value:
        case bool():
            return "true" if value else "false"
        case timedelta():
            return _duration_text(value)
        case Enum():
            return str(value.value)
        case Secret():
            return value.reference
    return str(value)


def _duration_text(value: timedelta) -> str:
    milliseconds = value // timedelta(milliseconds=1)
    for unit, length_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if milliseconds and milliseconds % length_ms == 0:
            return f"{milliseconds // length_ms} {unit}"
    return f"{milliseconds} ms"


def _choices(plain: Any) -> tuple[str, ...]:
    if plain is bool:
        return ("false", "true")
    if get_origin(plain) is Literal:
        return tuple(_text(each) for each in get_args(plain))
    if isinstance(plain, type) and issubclass(plain, Enum):
        return tuple(_text(each) for each in plain)
    return ()


def _read(name: str, kind: Any, text: str) -> Any:
    plain, _ = _plain(kind)
    try:
        return _value(plain, text)
    except ValueError as error:  # msgspec's errors are ValueErrors
        expected = _EXPECTED.get(plain) or f"one of {', '.join(_choices(plain))}"
        because = str(error) if plain in (timedelta, Secret) else f"expected {expected}"
        shown = "what was given" if plain is Secret else repr(text)
        raise Rejected(f"The parameter {name!r} cannot be {shown}; {because}.") from error


def _value(plain: Any, text: str) -> Any:
    if plain is timedelta:
        return timedelta(milliseconds=duration_ms(text))
    if plain in (str, Path, Secret):
        return plain(text)
    return msgspec.convert(text, plain, strict=False)


_EXPECTED: Mapping[Any, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Path: "a path",
    timedelta: "a duration, such as 500 ms or 10 min",
    Secret: SECRET_FORMS,
}
