"""All settings in one list, as the groups declare them, and the values of all that is given."""

from collections.abc import Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from typing import Any

import msgspec

from pipelines.domain.settings import Settings
from pipelines.domain.settings.readers import Definition, definition_of


def _definitions(group: type) -> Iterator[Definition]:
    for each in fields(group):
        if isinstance(each.type, type) and is_dataclass(each.type):
            yield from _definitions(each.type)
        else:
            yield definition_of(each)


DEFINITIONS = tuple(_definitions(Settings))


def read_settings(given: Mapping[str, str]) -> Settings:
    """Settings that are not given have their default. Raises Rejected for a bad value."""
    return msgspec.convert(_values(Settings, given), Settings)


def _values(group: type, given: Mapping[str, str]) -> dict[str, object]:
    return {each.name: _value(each, given) for each in fields(group)}


def _value(declared: Field[Any], given: Mapping[str, str]) -> object:
    if isinstance(declared.type, type) and is_dataclass(declared.type):
        return _values(declared.type, given)
    definition = definition_of(declared)
    return definition.parse(given.get(definition.key, definition.default))
