"""Turns the keys and texts that a person wrote into validated `Settings`: the only way in.

Strict: it refuses an unknown key, a bad value and a contradiction by name before anything starts.
"""

from collections.abc import Mapping
from difflib import get_close_matches

import msgspec

from pipelines.domain.absent_settings import why_absent
from pipelines.domain.errors import Rejected
from pipelines.domain.setting_rules import check_settings
from pipelines.domain.setting_table import DEFINITIONS
from pipelines.domain.settings import Settings

_BY_KEY = {definition.key: definition for definition in DEFINITIONS}


def parse_settings(given: Mapping[str, str]) -> Settings:
    """Settings that are not given have the default of the table.

    Raises:
        Rejected: an unknown key, with its closest neighbour; one of Flink's that ftdash lacks, with
        what to do instead; a bad value; settings that contradict each other.
    """
    for key in given:
        _check_known(key)
    values = {d.field: d.parse(given.get(d.key, d.default)) for d in DEFINITIONS}
    settings = msgspec.convert(values, Settings)
    check_settings(settings, given)
    return settings


def changed_settings(given: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """The given settings after `changes` to a run that goes on.

    Raises:
        Rejected: there is no change, a setting cannot change while a run goes on, or a start would
        refuse the settings.
    """
    if not changes:
        raise Rejected(f"Name a setting to change: {_listed_live()}.")
    for key in changes:
        _check_known(key)
        if not _BY_KEY[key].changes_live:
            raise Rejected(
                f"The setting {key} cannot change while a run goes on; {_listed_live()} can."
                " Stop the run with a savepoint and start it with the new value."
            )
    changed = {**given, **changes}
    parse_settings(changed)
    return changed


def _listed_live() -> str:
    *others, last = [definition.key for definition in DEFINITIONS if definition.changes_live]
    return f"{', '.join(others)} and {last}"


def _check_known(key: str) -> None:
    known = [definition.key for definition in DEFINITIONS]
    if key in known:
        return
    absent = why_absent(key)
    if absent is not None:
        raise Rejected(absent)
    closest = get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"; did you mean {closest[0]}?" if closest else "; no known setting is similar to it."
    raise Rejected(f"There is no setting {key!r}{hint}")
