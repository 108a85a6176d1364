"""Building a pipeline: how declarations become a graph, and what is refused before the start."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipelines.connectors import BlackHole, ExactlyOnceFiles, JsonLinesFiles, RedisHashes, SqlUpsert
from pipelines.connectors.contract import Sink, SinkContext, SinkWriter, Superseded
from pipelines.domain.errors import Rejected
from pipelines.domain.graph import EdgeKind
from pipelines.domain.guarantees import Ends
from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.domain.settings.parsing import parse_settings
from pipelines.stream import (
    LATE,
    BatchProcessFunction,
    Environment,
    Pipeline,
    Stream,
    count,
    mean,
    monotonous,
    session,
    sliding,
    tumbling,
)
from pipelines.stream.environment import check_places

TIME = pa.timestamp("ms", "UTC")
SCHEMA = pa.schema([("key", pa.string()), ("time", TIME), ("x", pa.float64())])
OTHER = pa.schema([("x", pa.int8())])
HOURLY = tumbling(hours=1)


def files(directory: str | Path) -> Sink:
    return ExactlyOnceFiles(directory, pipeline="p")


def upsert(url: str, table: str) -> Sink:
    return SqlUpsert(url, table, ("key",), pipeline="p")


def hashes(url: str, prefix: str) -> Sink:
    return RedisHashes(url, prefix, ("key",), pipeline="p")


def test_a_malformed_record_refuses_a_start_unless_quarantine_is_on(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": oops}\n')
    env = Environment()
    env.source(JsonLinesFiles(tmp_path, schema=OTHER), uid="in").sink(BlackHole(), uid="out")
    pipeline = env.build()

    pipeline.validate_sources(parse_settings({"execution.poison-records.policy": "quarantine"}))
    with pytest.raises(Rejected, match=r"a\.jsonl is malformed in line 1"):
        pipeline.validate_sources(parse_settings({}))


def test_windowed_aggregates_run_behind_an_exchange_by_key_with_their_sinks_chained() -> None:
    env = Environment()
    hourly = events(env).key_by("key").window(HOURLY).aggregate(n=count(), uid="hourly")
    hourly.sink(BlackHole(), uid="one").sink(BlackHole(), uid="two")

    pipeline = env.build()

    assert vertices(pipeline) == {
        "events": ("events", "hourly.local"),
        "hourly": ("hourly", "one", "two"),
    }
    assert pipeline.graph.vertex(Uid("hourly")).inputs[0].hash_by == ("key",)
    assert pipeline.schemas[Uid("two")].names == ["key", "window_start", "n"]


def test_running_totals_are_aggregated_before_and_after_the_exchange() -> None:
    env = Environment()
    events(env).key_by("key").aggregate(n=count(), uid="totals").sink(BlackHole(), uid="out")

    pipeline = env.build()

    assert vertices(pipeline) == {
        "events": ("events", "totals.local"),
        "totals": ("totals", "out"),
    }
    assert pipeline.schemas[Uid("totals.local")].names == ["key", "n__count"]
    assert pipeline.schemas[Uid("totals")].names == ["key", "n"]


def test_a_join_hashes_both_sides_by_its_columns_and_keeps_the_left_event_time() -> None:
    env = Environment()
    readings = Events(pa.schema([("key", pa.string()), ("at", TIME), ("wind", pa.float64())]), "at")
    right = env.source(readings, uid="readings")

    joined = events(env).join(right, on=["key"], window=HOURLY, uid="joined")
    joined.sink(BlackHole(), uid="out")

    inputs = env.build().graph.vertex(Uid("joined")).inputs
    assert [(edge.upstream_node, edge.hash_by) for edge in inputs] == [
        ("events", ("key",)),
        ("readings", ("key",)),
    ]
    assert joined.schema.names == ["key", "time", "x", "at", "wind"]
    assert joined.time_column == "time"


def test_a_stream_can_join_itself_after_its_other_columns_are_renamed() -> None:
    env = Environment()
    stream = events(env)
    again = pa.schema([("key", pa.string()), ("at", TIME), ("y", pa.float64())])
    renamed = stream.map_batches(lambda b: b.rename_columns(again.names), again, uid="renamed")

    stream.join(renamed, on=["key"], uid="pairs").sink(BlackHole(), uid="out")
    stream.union(stream, uid="twice").sink(BlackHole(), uid="out-2")

    graph = env.build().graph
    inputs = [graph.vertex(Uid(uid)).inputs for uid in ("pairs", "twice")]
    assert [[(edge.upstream_vertex, edge.upstream_node) for edge in each] for each in inputs] == [
        [("events", "events"), ("events", "renamed")],
        [("events", "events")] * 2,
    ]
    assert len(set(graph.channels(2))) == 2 * (4 + 2)


def test_each_kind_of_join_has_its_own_event_time_and_extra_columns() -> None:
    env = Environment()
    readings = Events(pa.schema([("key", pa.string()), ("at", TIME), ("wind", pa.float64())]), "at")
    left, right = events(env), env.source(readings, uid="readings")
    both = ["key", "time", "x", "at", "wind"]

    outer = left.join(right, on=["key"], window=HOURLY, how="left", uid="outer")
    near = left.interval_join(
        right, on=["key"], lower=timedelta(minutes=-5), upper=timedelta(), uid="near"
    )
    inner = left.join(right, on=["key"], uid="inner")
    full = left.join(right, on=["key"], how="full", uid="full")

    assert outer.schema.names == [*both, "window_start", "window_end", "window_time"]
    assert near.schema.names == [*both, "join_time"]
    assert inner.schema.names == both
    assert full.schema.names == [*both, "row_kind"]
    times = [stream.time_column for stream in (outer, near, inner, full)]
    assert times == ["window_time", "join_time", None, None]


def test_filters_and_functions_are_chained_and_functions_may_lose_event_time() -> None:
    env = Environment()
    kept = events(env).filter(pc.field("x") > 0, uid="kept")

    mapped = kept.map_batches(lambda b: b.select(["x"]), pa.schema([SCHEMA.field("x")]), uid="bare")
    mapped.sink(BlackHole(), uid="out")

    assert vertices(env.build()) == {"events": ("events", "kept", "bare", "out")}
    assert (kept.time_column, mapped.time_column) == ("time", None)


def test_overlapping_windows_name_both_bounds_and_use_window_time() -> None:
    env = Environment()
    keyed = events(env).key_by("key")
    every = sliding(timedelta(hours=1), every=timedelta(minutes=5))

    slid = keyed.window(every).aggregate(n=count(), uid="slid")
    sessions = keyed.window(session(minutes=5)).aggregate(n=count(), uid="sessions")
    whole = keyed.window(session(minutes=5)).apply(lambda w, rows: rows, SCHEMA, uid="whole")

    bounds = ["key", "window_start", "window_end", "window_time", "n"]
    assert slid.schema.names == sessions.schema.names == bounds
    assert [s.time_column for s in (slid, sessions, whole)] == ["window_time"] * 2 + [None]


def test_late_rows_form_a_stream_with_the_schema_and_time_of_the_input() -> None:
    env = Environment()
    windowed = events(env).key_by("key").window(HOURLY).allowed_lateness(timedelta(minutes=5))
    hourly = windowed.aggregate(n=count(), uid="hourly").sink(BlackHole(), uid="out")

    late = hourly.side_output(LATE, uid="late")
    late.key_by("key").window(HOURLY).aggregate(n=count(), uid="rest").sink(BlackHole(), uid="r")

    assert vertices(env.build()) == {
        "events": ("events",),
        "hourly": ("hourly", "out", "late", "rest.local"),
        "rest": ("rest", "r"),
    }
    assert (late.schema, late.time_column) == (SCHEMA, "time")


def test_streams_of_one_schema_unite_without_a_key_and_keep_their_event_time() -> None:
    env = Environment()
    left, right = events(env), env.source(Events(), uid="more")

    both = left.union(right, uid="both")
    both.sink(BlackHole(), uid="out")

    inputs = env.build().graph.vertex(Uid("both")).inputs
    assert [(edge.upstream_node, edge.kind) for edge in inputs] == [
        ("events", EdgeKind.FORWARD),
        ("more", EdgeKind.FORWARD),
    ]
    assert (both.schema, both.time_column) == (SCHEMA, "time")


@pytest.mark.parametrize(
    ("spread", "kind"),
    [(Stream.rebalance, EdgeKind.REBALANCE), (Stream.broadcast, EdgeKind.BROADCAST)],
)
def test_a_stream_can_be_redistributed_to_an_operator_or_sink_without_a_key(
    spread: Callable[[Stream], Stream], kind: EdgeKind
) -> None:
    env = Environment()
    kept = spread(events(env)).filter(pc.field("x") > 0, uid="kept")
    spread(kept).sink(BlackHole(), uid="out")

    graph = env.build().graph

    assert [v.uid for v in graph.vertices] == ["events", "kept", "out"]
    assert [e.kind for v in graph.vertices for e in v.inputs] == [kind, kind]


def test_connected_streams_meet_in_one_operator_with_or_without_a_key() -> None:
    env = Environment()
    narrow = pa.schema([("id", pa.string())])
    ids = env.source(Events(narrow, None), uid="ids")
    connected = events(env).connect(ids)

    for uid, streams in {"plain": connected, "keyed": connected.key_by(["key"], ["id"])}.items():
        mapped = streams.map_batches(lambda b: b, lambda b: b, narrow, uid=uid)
        mapped.sink(BlackHole(), uid=f"{uid}-out")

    graph = env.build().graph
    assert [e.kind for e in graph.vertex(Uid("plain")).inputs] == [EdgeKind.FORWARD] * 2
    assert [e.hash_by for e in graph.vertex(Uid("keyed")).inputs] == [("key",), ("id",)]


def test_a_function_with_state_reads_by_key_and_keeps_event_time_with_its_column() -> None:
    env = Environment()
    timed = pa.schema([("key", pa.string()), ("time", TIME)])
    stream = events(env)

    kept = stream.key_by("key").process(Silent(), timed, uid="kept")
    lost = stream.key_by("key").process(Silent(), OTHER, uid="lost")
    for processed in (kept, lost):
        processed.sink(BlackHole(), uid=f"{processed.node}-out")

    assert (kept.time_column, lost.time_column) == ("time", None)
    assert env.build().graph.vertex(Uid("kept")).inputs[0].hash_by == ("key",)


def test_a_function_of_two_streams_takes_the_second_by_key_or_broadcast() -> None:
    env = Environment()
    ids = env.source(Events(pa.schema([("id", pa.string())]), None), uid="ids")
    keyed = events(env).key_by("key")

    both = keyed.connect(ids.broadcast()).process(Silent(), OTHER, uid="broadcast")
    both.sink(BlackHole(), uid="out-1")
    paired = events_again(env).connect(ids).key_by(["key"], ["id"])
    paired.process(Silent(), OTHER, uid="keyed").sink(BlackHole(), uid="out-2")

    graph = env.build().graph
    kinds = [edge.kind for edge in graph.vertex(Uid("broadcast")).inputs]
    assert kinds == [EdgeKind.HASH, EdgeKind.BROADCAST]
    assert [edge.hash_by for edge in graph.vertex(Uid("keyed")).inputs] == [("key",), ("id",)]


def test_row_functions_are_chained_and_declare_their_schemas() -> None:
    env = Environment()
    narrow = pa.schema([("time", TIME)])
    stream = events(env)

    mapped = stream.map(lambda row: {"time": row["time"]}, narrow, uid="map")
    flat = mapped.flat_map(lambda row: [], OTHER, uid="flat")
    flat.filter_rows(lambda row: True, uid="kept").sink(BlackHole(), uid="out")
    gathered = stream.process(Silent(), narrow, uid="gathered")
    gathered.sink(BlackHole(), uid="gathered-out")

    assert [s.time_column for s in (mapped, flat, gathered)] == ["time", None, "time"]
    assert len(env.build().graph.vertices) == 1


def test_each_subtask_gets_an_operator_of_its_own() -> None:
    env = Environment()
    events(env).filter(pc.field("x") > 0, uid="kept").sink(BlackHole(), uid="out")

    create = env.build().operators[Uid("kept")]

    assert create() is not create()


def test_a_pipeline_knows_its_ends() -> None:
    env = Environment()
    env.source(Socket(), uid="socket").sink(Guaranteeing("at-least-once"), uid="lines")
    events(env).sink(Guaranteeing("exactly-once"), uid="table")

    assert env.build().ends == Ends(
        (Uid("socket"),), {Uid("lines"): "at-least-once", Uid("table"): "exactly-once"}
    )


@pytest.mark.parametrize(
    ("declare", "sentence"),
    [
        (lambda s: s.filter(pc.field("y") > 0, uid="kept"), "'kept' cannot .* no column 'y'"),
        (
            lambda s: s.key_by("y").aggregate(n=count(), uid="totals"),
            "'totals' cannot .* no column 'y'",
        ),
        (
            lambda s: s.key_by("key").window(HOURLY).aggregate(m=mean("key"), uid="hourly"),
            "'hourly' cannot .* mean of column 'key'",
        ),
        (lambda s: s.join(s, on=["y"], window=HOURLY, uid="joined"), "'joined' cannot .* 'y'"),
        (
            lambda s: (
                s.map_batches(lambda b: b, pa.schema([("x", pa.int8())]), uid="bare")
                .key_by("x")
                .window(HOURLY)
                .aggregate(n=count(), uid="hourly")
            ),
            "'bare' has no event time",
        ),
        (
            lambda s: s.join(events(Environment()), on=["key"], window=HOURLY, uid="joined"),
            "'joined' joins streams of two environments",
        ),
        (
            lambda s: s.union(s.map_batches(lambda b: b, OTHER, uid="other"), uid="both"),
            r"'both' cannot .* \(key string, .* input 2 \(x int8\)",
        ),
        (
            lambda s: s.union(replace(s, time_column=None), uid="both"),
            "'both' unites streams with different event times",
        ),
        (
            lambda s: s.connect(s.map_batches(lambda b: b, OTHER, uid="o")).key_by(["key"], ["x"]),
            r"'events' and 'o' cannot be connected by \['key'\] and \['x'\]",
        ),
        (
            lambda s: s.key_by("x").process(Silent(), OTHER, uid="p"),
            "'p' cannot .* the key column 'x' has type double",
        ),
        (
            lambda s: s.key_by("gone").process(Silent(), OTHER, uid="p"),
            "'p' cannot .* no column 'gone'",
        ),
        (
            lambda s: s.key_by("key").connect(s).process(Silent(), OTHER, uid="p"),
            "'p' processes two streams: the first needs a key, and the second the same one or",
        ),
        (
            lambda s: s.connect(s.broadcast()).process(Silent(), OTHER, uid="p"),
            "'p' processes two streams",
        ),
        (
            lambda s: s.join(s, on=["key"], window=HOURLY, ttl=timedelta(1), uid="j"),
            "'j' joins within windows, which end by themselves",
        ),
        (lambda s: s.join(s, on=["key"], how="outer", uid="j"), "'j' cannot .* no 'outer' join"),
        (
            lambda s: s.join(s, on=["key"], window=HOURLY, uid="self"),
            "'self' cannot .* Both sides have a column 'time'; rename one of them",
        ),
        (
            lambda s: s.join(s, on=["key"], uid="self"),
            "'self' cannot .* Both sides have a column 'time'; rename one of them",
        ),
        (
            lambda s: s.interval_join(
                s, on=["key"], lower=timedelta(1), upper=timedelta(0), uid="near"
            ),
            "'near' cannot .* holds nothing",
        ),
        (
            lambda s: s.key_by("key").window(HOURLY).allowed_lateness(timedelta(hours=-1)),
            "lateness of -3600000 ms cannot be allowed",
        ),
        (
            lambda s: s.environment.source(
                Events(OTHER, None), uid="timeless", watermarks=monotonous()
            ),
            "'timeless' has no event time, so it has no watermarks",
        ),
        (lambda s: s.side_output("late", uid="late"), "'events' has no side output 'late'"),
        (
            lambda s: s.sink(Guaranteeing("exactly-once", refuses="x"), uid="out"),
            "'out' cannot .* column x",
        ),
    ],
)
def test_an_invalid_operator_is_refused_by_uid_where_it_is_declared(
    declare: Callable[[Stream], object], sentence: str
) -> None:
    stream = events(Environment())

    with pytest.raises(Rejected, match=sentence):
        declare(stream)


@pytest.mark.parametrize(
    ("declare", "sentence"),
    [
        (lambda s: s.sink(BlackHole(), uid="events"), "'events' is used twice"),
        (lambda s: s.filter(pc.field("x") > 0, uid="kept"), "'kept' reaches no sink"),
        (lambda s: None, "'events' reaches no sink"),
        (
            lambda s: s.key_by().aggregate(n=count(), uid="totals").sink(BlackHole(), uid="out"),
            "hashed by no column",
        ),
    ],
)
def test_an_impossible_graph_is_refused_when_it_is_built(
    declare: Callable[[Stream], object], sentence: str
) -> None:
    env = Environment()
    declare(events(env))

    with pytest.raises(Rejected, match=sentence):
        env.build()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (files("/data/out"), files("/data/elsewhere/../out/")),
        (upsert("sqlite:////data/a.sqlite", "t"), upsert("sqlite:////data/x/../a.sqlite", "T")),
        (
            upsert("postgresql://a:secret@localhost/db", "t"),
            upsert("postgresql+psycopg://b@127.0.0.1:5432/db", "t"),
        ),
        (upsert("postgresql://db@/?host=/run", "t"), upsert("postgresql:///db?host=/run", "t")),
        (hashes("redis://localhost", "p"), hashes("redis://u:secret@127.0.0.1:6379/0", "p")),
        (hashes("unix:///run/redis.sock", "p"), hashes("unix:///run/redis.sock?db=0", "p")),
    ],
)
def test_two_sinks_that_would_destroy_output_of_each_other_are_refused_by_uid(
    one: Sink, other: Sink
) -> None:
    with pytest.raises(Rejected, match="'a' and 'b' both write to") as refusal:
        check_places({Uid("a"): one, Uid("b"): other})

    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (files("/data/out"), files("/data/out/late")),
        (upsert("sqlite:////data/a.sqlite", "t"), upsert("sqlite:////data/a.sqlite", "u")),
        (upsert("sqlite:////data/a.sqlite", "t"), upsert("sqlite:////data/b.sqlite", "t")),
        (upsert("postgresql://h/db", "t"), upsert("postgresql://h/db", "T")),
        (upsert("postgresql://h:5433/db", "t"), upsert("postgresql://h/db", "t")),
        (
            upsert("postgresql://h/db?options=-csearch_path%3Da", "t"),
            upsert("postgresql://h/db", "t"),
        ),
        (hashes("redis://h", "p"), hashes("redis://h", "q")),
        (hashes("redis://h/1", "p"), hashes("redis://h/2", "p")),
    ],
)
def test_sinks_in_different_places_are_accepted(one: Sink, other: Sink) -> None:
    assert one.place != other.place
    check_places({Uid("a"): one, Uid("b"): other})


def test_two_file_sinks_in_one_directory_are_refused_when_the_pipeline_is_built(
    tmp_path: Path,
) -> None:
    env = Environment()
    (tmp_path / "link").symlink_to(tmp_path)
    stream = events(env).sink(files(tmp_path / "out"), uid="first")
    stream.sink(files(tmp_path / "link" / "out"), uid="second")

    with pytest.raises(Rejected, match=f"'first' and 'second' both write to .*{tmp_path}/out"):
        env.build()


def test_an_impossible_maximum_parallelism_is_refused_when_it_is_built() -> None:
    env = Environment(max_parallelism=0)
    events(env).sink(BlackHole(), uid="out")

    with pytest.raises(Rejected, match="maximum parallelism cannot be 0"):
        env.build()


@dataclass(frozen=True)
class Events:
    """A source that describes itself and is never read."""

    schema: pa.Schema = SCHEMA
    timestamp_column: str | None = "time"
    out_of_orderness_ms: int = 0

    def validate(self) -> None:
        pass

    def split_id(self, index: int) -> str | None:
        return None

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        return iter(())

    def event_time_ms(self, index: int, offset: int) -> int | None:
        return None


class Socket(Events):
    """A source whose records can be read only once."""

    reads_once = True


@dataclass(frozen=True)
class Guaranteeing:
    """A sink that gives the guarantee it was made with, and refuses one column."""

    guarantee: str
    refuses: str | None = None

    def check_columns(self, schema: pa.Schema) -> None:
        if self.refuses in schema.names:
            raise Rejected(f"The target has no column {self.refuses}.")

    def validate(self, schema: pa.Schema) -> None:
        self.check_columns(schema)

    def open(self, context: SinkContext, schema: pa.Schema) -> SinkWriter:
        return BlackHole().open(context, schema)

    def rewind(
        self, ancestors: list[tuple[RunId, CheckpointId]], run_id: RunId
    ) -> Superseded | None:
        return None


def events(env: Environment) -> Stream:
    return env.source(Events(), uid="events")


def vertices(pipeline: Pipeline) -> dict[str, tuple[str, ...]]:
    return {vertex.uid: vertex.nodes for vertex in pipeline.graph.vertices}


class Silent(BatchProcessFunction):
    """Never called."""


def events_again(env: Environment) -> Stream:
    return env.source(Events(), uid="events-again")
