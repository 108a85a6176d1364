"""The end-to-end guarantee is no stronger than source, mode and sinks, and names the reason."""

import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.guarantees import NONE, Ends, EndToEnd, check_required, end_to_end
from pipelines.domain.ids import Uid
from pipelines.domain.settings import CheckpointingMode, RequiredGuarantee

EXACTLY, AT_LEAST, AT_MOST = "exactly-once", "at-least-once", "at-most-once"
IDEMPOTENT = "exactly-once (idempotent)"


@pytest.mark.parametrize(
    ("mode", "of_sinks", "expected"),
    [
        ("EXACTLY_ONCE", "exactly-once", "exactly-once"),
        ("EXACTLY_ONCE", "exactly-once (idempotent)", "exactly-once (idempotent)"),
        ("EXACTLY_ONCE", "at-least-once", "at-least-once"),
        ("AT_LEAST_ONCE", "exactly-once", "at-least-once"),
        ("AT_LEAST_ONCE", "exactly-once (idempotent)", "at-least-once"),
        ("AT_LEAST_ONCE", "whatever", "whatever"),
        ("ACKED", "exactly-once", "at-least-once"),
        ("AT_MOST_ONCE", "exactly-once", "at-most-once"),
        ("AT_MOST_ONCE", "exactly-once (idempotent)", "at-most-once"),
        ("AT_MOST_ONCE", "at-least-once", NONE),
        ("AT_MOST_ONCE", "whatever", NONE),
    ],
)
def test_the_guarantee_is_the_weaker_of_mode_and_sinks(
    mode: str, of_sinks: str, expected: str
) -> None:
    assert found(mode=mode, sinks=[of_sinks]).guarantee == expected


@pytest.mark.parametrize(
    ("of_sinks", "expected"),
    [(EXACTLY, AT_MOST), (IDEMPOTENT, AT_MOST), (AT_LEAST, NONE), ("whatever", NONE)],
)
def test_a_source_that_cannot_be_read_again_gives_at_most_once_at_best(
    of_sinks: str, expected: str
) -> None:
    assert found(read_once=["socket"], sinks=[of_sinks]).guarantee == expected


@pytest.mark.parametrize(
    ("of_sinks", "expected"),
    [
        ([EXACTLY, EXACTLY], EXACTLY),
        ([EXACTLY, IDEMPOTENT], IDEMPOTENT),
        ([AT_LEAST, IDEMPOTENT], AT_LEAST),
        ([EXACTLY, "whatever", AT_LEAST], "whatever"),
        ([], EXACTLY),
    ],
)
def test_the_weakest_sink_decides(of_sinks: list[str], expected: str) -> None:
    assert found(sinks=of_sinks).guarantee == expected


@pytest.mark.parametrize(
    ("pipeline", "reason"),
    [
        (
            {"sinks": [EXACTLY]},
            "every source can be read again, checkpoints are exact, and every sink commits with"
            " them",
        ),
        (
            {"sinks": [EXACTLY, IDEMPOTENT]},
            "the sink 'sink-1' overwrites what it wrote, and is exact again when the next"
            " checkpoint completes",
        ),
        ({"sinks": [AT_LEAST, EXACTLY]}, "the sink 'sink-0' may write a record again"),
        (
            {"sinks": [AT_LEAST], "read_once": ["socket"], "mode": "AT_MOST_ONCE"},
            "execution.checkpointing.mode is AT_MOST_ONCE and the source 'socket' cannot be read"
            " again and the sink 'sink-0' may write a record again",
        ),
        (
            {"sinks": ["hopefully"], "mode": "AT_LEAST_ONCE"},
            "execution.checkpointing.mode is AT_LEAST_ONCE and the sink 'sink-0' says of itself"
            " 'hopefully'",
        ),
    ],
)
def test_the_reason_names_every_link_that_weakens(pipeline: dict, reason: str) -> None:
    assert found(**pipeline).reason == reason


@pytest.mark.parametrize(
    ("required", "enough"),
    [
        ("NONE", {EXACTLY, IDEMPOTENT, AT_LEAST, AT_MOST, NONE, "whatever"}),
        ("AT_MOST_ONCE", {EXACTLY, IDEMPOTENT, AT_MOST}),
        ("AT_LEAST_ONCE", {EXACTLY, IDEMPOTENT, AT_LEAST}),
        ("IDEMPOTENT", {EXACTLY, IDEMPOTENT}),
        ("EXACTLY_ONCE", {EXACTLY}),
    ],
)
@pytest.mark.parametrize("given", [EXACTLY, IDEMPOTENT, AT_LEAST, AT_MOST, NONE, "whatever"])
def test_a_stronger_guarantee_than_given_cannot_be_required(
    required: str, enough: set[str], given: str
) -> None:
    found = EndToEnd(given, "so it is")
    if given in enough:
        check_required(RequiredGuarantee[required], found)
        return

    with pytest.raises(Rejected) as refused:
        check_required(RequiredGuarantee[required], found)

    assert str(refused.value) == (
        f"ftdash.guarantee.required is {required}, and this pipeline guarantees no more than"
        f" {given!r} from end to end, because so it is."
    )


def found(
    *, mode: str = "EXACTLY_ONCE", read_once: list[str] | None = None, sinks: list[str]
) -> EndToEnd:
    ends = Ends(
        tuple(Uid(uid) for uid in read_once or []),
        {Uid(f"sink-{index}"): guarantee for index, guarantee in enumerate(sinks)},
    )
    return end_to_end(CheckpointingMode(mode), ends)
