"""A pipeline and a point fit by uids, roles, states, columns and key groups."""

import msgspec
import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.graph import Connection, JobGraph, Node, NodeKind
from pipelines.domain.ids import Uid, channel_id, operator_id
from pipelines.domain.snapshots import (
    FileHandle,
    InFlightHandle,
    Manifest,
    OperatorSnapshot,
    StateHandle,
    SubtaskSnapshot,
    renamed,
)
from pipelines.protocol.compatibility import (
    DeclaredColumns,
    Target,
    compare,
    likely_names,
    unfit_names,
)
from tests.unit.runtime.points import manifest_of

READ, COUNT, OUT = Uid("read"), Uid("count"), Uid("out")
COLUMNS = {"carrier": "string", "flights": "int32", "__key_group": "uint16"}
GRAPH = JobGraph.of(
    [
        Node(READ, NodeKind.SOURCE),
        Node(COUNT, NodeKind.OPERATOR, (Connection(READ, ("carrier",)),)),
        Node(OUT, NodeKind.SINK, (Connection(COUNT),)),
    ]
)


def test_the_same_pipeline_takes_over_everything() -> None:
    found = compare(point(), target())

    assert found.problems == ()
    assert (found.matched, found.new, found.dropped) == ((READ, COUNT, OUT), (), ())
    assert (found.dropped_states, found.changes) == ((), ())


def test_a_pipeline_of_another_name_with_the_same_uids_takes_over_everything() -> None:
    assert compare(point(pipeline="other"), target()).problems == ()


def test_an_operator_that_only_moved_keeps_its_state() -> None:
    """Only the uid counts; the name and the chain of an operator may change."""
    moved = msgspec.structs.replace(point().subtasks[0], vertex=Uid("elsewhere"))

    assert compare(point(subtasks=[moved]), target()).problems == ()


def test_a_new_operator_starts_empty() -> None:
    held = [source(), counted()]

    assert compare(point(held), target()).new == (OUT,)


def test_dropping_the_state_of_a_missing_operator_needs_permission() -> None:
    held = [source(), counted(uid="former"), counted()]

    refused = compare(point(held), target())
    allowed = compare(point(held), target(allows_non_restored_state=True))

    [problem] = refused.problems
    assert "'former'" in problem
    assert "allow" in problem
    assert allowed.problems == ()
    assert allowed.dropped == refused.dropped == (Uid("former"),)


def test_dropping_a_single_state_needs_permission_too() -> None:
    held = [source(), counted(states=[handle(), handle(state="late")])]

    refused = compare(point(held), target())
    allowed = compare(point(held), target(allows_non_restored_state=True))

    [problem] = refused.problems
    assert "'late'" in problem
    assert "'count'" in problem
    assert allowed.problems == ()
    assert allowed.dropped_states == ((COUNT, "late"),)


def test_an_operator_without_state_may_be_dropped_without_permission() -> None:
    held = [source(), counted(), OperatorSnapshot(uid=Uid("former"), counters={"read": 1})]

    assert compare(point(held), target()).problems == ()


@pytest.mark.parametrize("allows", [False, True])
def test_a_point_without_any_operator_of_the_pipeline_is_refused_even_with_permission(
    allows: bool,
) -> None:
    foreign = point([counted(uid="former")], pipeline="other")

    [problem] = compare(foreign, target(allows_non_restored_state=allows)).problems

    assert "'other'" in problem
    assert "'former'" in problem


@pytest.mark.parametrize("allows", [False, True])
@pytest.mark.parametrize(
    ("held", "named"),
    [
        (lambda: [source(uid="count")], ["'count'", "source", "operator"]),
        (lambda: [sink(uid="read")], ["'read'", "sink", "source"]),
    ],
)
def test_an_operator_that_changed_its_role_is_refused(held, named, allows: bool) -> None:
    [problem] = compare(point(held()), target(allows_non_restored_state=allows)).problems

    assert all(name in problem for name in named)


def test_a_changed_kind_of_state_is_refused_by_name() -> None:
    held = [source(), counted(states=[handle(kind="batches")])]

    [problem] = compare(point(held), target()).problems

    assert "'totals'" in problem
    assert "'batches'" in problem
    assert "'table'" in problem


def test_a_column_that_does_not_fit_is_refused_with_operator_state_and_types() -> None:
    held = [source(), counted(states=[handle(schema={**COLUMNS, "flights": "int64"})])]

    [problem] = compare(point(held), target()).problems

    assert problem == (
        "'count': The column 'flights' of the state 'totals' is int64 in the snapshot and int32 in"
        " the operator."
    )


def test_an_accepted_change_of_columns_is_reported() -> None:
    held = [source(), counted(states=[handle(schema={**COLUMNS, "flights": "int16"})])]

    found = compare(point(held), target())

    assert found.problems == ()
    assert found.changes == (
        "In the state 'totals' of 'count', column 'flights' is widened from int16 to int32.",
    )


@pytest.mark.parametrize(
    ("parallelism", "maximum", "named"),
    [(129, 128, "129"), (0, 128, "0"), (1, 64, "64")],
)
def test_a_parallelism_that_does_not_fit_the_key_groups_is_refused(
    parallelism: int, maximum: int, named: str
) -> None:
    changed = target(parallelism=parallelism, max_parallelism=maximum)

    [problem] = compare(point(), changed).problems

    assert named in problem


def test_all_problems_of_a_point_are_reported_at_once() -> None:
    held = [counted(uid="former"), counted(states=[handle(kind="batches")])]

    assert len(compare(point(held, max_parallelism=64), target()).problems) == 3


RENAMED = {Uid("former"): COUNT}


def test_a_renamed_operator_keeps_its_state() -> None:
    stored = point([source(), counted(uid="former"), sink()])

    seen = renamed(stored, RENAMED)

    assert list(unfit_names(stored, GRAPH, RENAMED)) == []
    assert compare(seen, target()).problems == ()
    assert compare(seen, target()).matched == (READ, COUNT, OUT)
    assert [each.uid for each in stored.subtasks[0].operators] == [READ, "former", OUT]


def test_two_operators_may_exchange_their_names() -> None:
    stored = point([counted(uid="a", states=[]), counted(uid="b")])

    [subtask] = renamed(stored, {Uid("a"): Uid("b"), Uid("b"): Uid("a")}).subtasks

    assert [(each.uid, len(each.states)) for each in subtask.operators] == [("b", 0), ("a", 1)]


def test_vertices_channels_and_parallelisms_are_renamed_too() -> None:
    file = FileHandle(name="waiting.arrow", length=1, digest="")
    waiting = InFlightHandle(
        channel=channel_id(READ, 1, Uid("former"), 0, 2), is_output=False, file=file, rows=1
    )
    held = SubtaskSnapshot(
        vertex=Uid("former"), subtask=0, operators=[counted("former")], in_flight=[waiting]
    )
    ids = {Uid("former"): operator_id(Uid("former"))}
    stored = point(subtasks=[held], parallelisms={Uid("former"): 3}, operator_ids=ids)

    seen = renamed(stored, RENAMED)

    [subtask] = seen.subtasks
    assert subtask.vertex == COUNT
    assert subtask.in_flight[0].channel == channel_id(READ, 1, COUNT, 0, 2)
    assert seen.parallelisms == {COUNT: 3}
    assert seen.operator_ids == {COUNT: operator_id(COUNT)}


@pytest.mark.parametrize(
    ("held", "names", "named"),
    [
        ([], {"nothing": "count"}, "holds no state of an operator 'nothing'"),
        ([], {"former": "nowhere"}, "no operator 'nowhere'"),
        ([], {"former": "read"}, "knows 'read' itself"),
        ([], {"former": "count", "read": "count"}, "Only one operator of the point"),
        ([], {"out": "count"}, "'out' is a sink"),
        (["quarantined"], {"read": "count"}, "'read' has records in quarantine"),
    ],
)
def test_an_impossible_renaming_is_refused(
    held: list[str], names: dict[str, str], named: str
) -> None:
    read = msgspec.structs.replace(source(), **{each: [{}] for each in held})
    stored = point([read, counted(uid="former"), sink()])

    problems = list(unfit_names(stored, GRAPH, {Uid(a): Uid(b) for a, b in names.items()}))

    assert any(named in each for each in problems)


def test_two_operators_with_one_uid_are_refused_when_a_point_is_read() -> None:
    with pytest.raises(Rejected, match="cannot have one uid"):
        renamed(point([counted(uid="former"), counted()]), RENAMED)


def test_an_operator_that_looks_renamed_is_guessed() -> None:
    assert likely_names(point([source(), counted(uid="former"), sink()]), target()) == RENAMED


def test_a_state_that_was_empty_does_not_prevent_guessing_the_new_name() -> None:
    declared = dict(target().declared[COUNT])
    timers = DeclaredColumns("timers", "table", COLUMNS, frozenset(), frozenset({"carrier"}))
    beside = target(declared={COUNT: declared | {"timers": timers}})

    assert likely_names(point([source(), counted(uid="former"), sink()]), beside) == RENAMED


@pytest.mark.parametrize(
    "held",
    [
        [("former", {"schema": {"carrier": "string"}})],  # another schema
        [("former", {"state": "late"})],  # another state
        [("former", {}), ("earlier", {})],  # it may be either
        [("former", {}), ("count", {})],  # nothing is new
    ],
)
def test_no_renaming_is_guessed_in_case_of_doubt(held: list[tuple[str, dict]]) -> None:
    operators = [counted(uid, states=[handle(**changes)]) for uid, changes in held]

    assert likely_names(point([source(), *operators, sink()]), target()) == {}


def target(**changes: object) -> Target:
    declared = DeclaredColumns(
        "totals", "table", COLUMNS, frozenset({"flights"}), frozenset({"carrier", "__key_group"})
    )
    values: dict[str, object] = {
        "pipeline": "joining",
        "graph": GRAPH,
        "declared": {COUNT: {"totals": declared}},
        "parallelism": 2,
        "max_parallelism": 128,
    }
    return Target(**{**values, **changes})  # type: ignore[arg-type]


def point(held: list[OperatorSnapshot] | None = None, **changes: object) -> Manifest:
    return manifest_of([[source(), counted(), sink()] if held is None else held], **changes)


def source(uid: str = "read") -> OperatorSnapshot:
    return OperatorSnapshot(uid=Uid(uid), positions={"backlog": [], "frontier": 0, "stride": 1})


def sink(uid: str = "out") -> OperatorSnapshot:
    return OperatorSnapshot(uid=Uid(uid), committables=[{"checkpoint_id": 1, "items": ["file"]}])


def counted(uid: str = "count", states: list[StateHandle] | None = None) -> OperatorSnapshot:
    return OperatorSnapshot(uid=Uid(uid), states=[handle()] if states is None else states)


def handle(**changes: object) -> StateHandle:
    values: dict[str, object] = {
        "state": "totals",
        "kind": "table",
        "file": FileHandle(name="totals.arrow", length=1, digest=""),
        "key_groups": (0, 127),
        "rows": 1,
        "schema": COLUMNS,
    }
    return StateHandle(**{**values, **changes})  # type: ignore[arg-type]
