"""A pipeline's guarantee from end to end, which its sources, its mode and its sinks limit.

Pure. The guarantee of a sink is the one it would keep with an exact engine. A source either
supplies its records again after a rewind, or it does not.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Uid
from pipelines.domain.settings import REQUIRED_KEY, CheckpointingMode, RequiredGuarantee

EXACTLY_ONCE = "exactly-once"
IDEMPOTENT = "exactly-once (idempotent)"
AT_LEAST_ONCE = "at-least-once"
AT_MOST_ONCE = "at-most-once"
NONE = "none: records may be lost, and may come out twice"
GUARANTEES = (EXACTLY_ONCE, IDEMPOTENT, AT_LEAST_ONCE)
"""The guarantees of sinks, strongest first; several sinks have the weakest of theirs."""

_MEETS: Mapping[RequiredGuarantee, set[str] | None] = {
    RequiredGuarantee.NONE: None,
    RequiredGuarantee.AT_MOST_ONCE: {AT_MOST_ONCE, IDEMPOTENT, EXACTLY_ONCE},
    RequiredGuarantee.AT_LEAST_ONCE: {AT_LEAST_ONCE, IDEMPOTENT, EXACTLY_ONCE},
    RequiredGuarantee.IDEMPOTENT: {IDEMPOTENT, EXACTLY_ONCE},
    RequiredGuarantee.EXACTLY_ONCE: {EXACTLY_ONCE},
}
"""The guarantees that meet each requirement; None means that any does."""


@dataclass(frozen=True, slots=True)
class Ends:
    """The sources of a pipeline that cannot be read again, and the guarantee of each sink."""

    read_once: tuple[Uid, ...]
    sinks: Mapping[Uid, str]


@dataclass(frozen=True, slots=True)
class EndToEnd:
    """`reason` names the links that decide it, as a clause."""

    guarantee: str
    reason: str

    @property
    def sentence(self) -> str:
        return f"From end to end {self.guarantee}, because {self.reason}."


def weakest(guarantees: Iterable[str]) -> str:
    """An unknown guarantee is weaker than any known one, and is shown as it is."""
    ranked = {guarantee: rank for rank, guarantee in enumerate(GUARANTEES)}
    found, worst = GUARANTEES[0], -1
    for guarantee in guarantees:
        rank = ranked.get(guarantee, len(GUARANTEES))
        if rank > worst:
            found, worst = guarantee, rank
    return found


def end_to_end(mode: CheckpointingMode, ends: Ends) -> EndToEnd:
    """Finds the links that may lose or double records, then the guarantee that remains."""
    losing = [f"the source {uid!r} cannot be read again" for uid in ends.read_once]
    doubling = _sinks_that_keep(ends, AT_LEAST_ONCE, "may write a record again")
    match mode:
        case CheckpointingMode.EXACTLY_ONCE:
            pass
        case CheckpointingMode.AT_LEAST_ONCE | CheckpointingMode.ACKED:
            doubling.insert(0, f"execution.checkpointing.mode is {mode}")
        case CheckpointingMode.AT_MOST_ONCE:
            losing.insert(0, "execution.checkpointing.mode is AT_MOST_ONCE")
    of_sinks = weakest(ends.sinks.values())
    if of_sinks not in GUARANTEES:
        unknown = _sinks_that_keep(ends, of_sinks, f"says of itself {of_sinks!r}")
        return EndToEnd(NONE if losing else of_sinks, _and([*losing, *doubling, *unknown]))
    if losing and doubling:
        return EndToEnd(NONE, _and([*losing, *doubling]))
    if losing or doubling:
        return EndToEnd(AT_MOST_ONCE if losing else AT_LEAST_ONCE, _and([*losing, *doubling]))
    return EndToEnd(of_sinks, _why_exact(ends, of_sinks))


def check_required(required: RequiredGuarantee, found: EndToEnd) -> None:
    """Raises Rejected if the guarantee is less than the required one."""
    enough = _MEETS[required]
    if enough is None or found.guarantee in enough:
        return
    raise Rejected(
        f"{REQUIRED_KEY} is {required}, and this pipeline guarantees no more than"
        f" {found.guarantee!r} from end to end, because {found.reason}."
    )


def _why_exact(ends: Ends, of_sinks: str) -> str:
    if of_sinks == EXACTLY_ONCE:
        return (
            "every source can be read again, checkpoints are exact, and every sink commits with"
            " them"
        )
    overwriting = "overwrites what it wrote, and is exact again when the next checkpoint completes"
    return _and(_sinks_that_keep(ends, IDEMPOTENT, overwriting))


def _sinks_that_keep(ends: Ends, guarantee: str, so: str) -> list[str]:
    return [f"the sink {uid!r} {so}" for uid, kept in ends.sinks.items() if kept == guarantee]


def _and(reasons: list[str]) -> str:
    return " and ".join(reasons)
