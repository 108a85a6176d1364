"""One rewind by seed: a query takes a wrong turn, is forked, and must equal one that did not.

The seed chooses the store, the operator, the source (one of those requested), the batch to go back
to, and the length of the wrong turn. It also chooses the change in the code, whether the fork
starts from a savepoint, and where the fork is restarted.
"""

import random
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from pyspark.sql import SparkSession

from pipelines.storage.trees import tree_at
from pipelines.structured.directory import read_query
from pipelines.structured.doctor import examine
from pipelines.structured.fork import Boundaries, ForkRequest, fork
from pipelines.structured.savepoints import SavepointRequest, take_savepoint
from tests.brokers.kafka_broker import KafkaBroker
from tests.structured_rewinds.kafka import Topic
from tests.structured_rewinds.queries import (
    HDFS,
    ROCKSDB,
    Input,
    Query,
    Rows,
    StoreSetting,
    end_maintenance,
)

STORES = {
    "HDFS": HDFS,
    "RocksDB 1": StoreSetting(ROCKSDB, 1),
    "RocksDB 1 with changelog": StoreSetting(ROCKSDB, 1, True),
    "RocksDB 2": StoreSetting(ROCKSDB, 2),
    "RocksDB 2 with changelog": StoreSetting(ROCKSDB, 2, True),
}
OPERATORS = ("aggregation", "deduplication", "join", "transformWithState")
SOURCES = ("file", "rate", "kafka")
CELLS = [
    cell
    for cell in product(STORES, OPERATORS, SOURCES)
    if cell[:2] != ("HDFS", "transformWithState")  # Spark offers it with RocksDB only
]


@dataclass(frozen=True, slots=True)
class Story:
    seed: int
    store: str
    operator: str
    source: str
    back_to: int
    wrong_until: int
    right_until: int
    restart_at: int
    shift: int
    boundaries: Boundaries
    has_savepoint: bool


def story_of(seed: int, sources: Collection[str] = SOURCES) -> Story:
    """Returns the story of a seed. Consecutive seeds go through all cells of these sources."""
    chance = random.Random(seed)
    cells = [cell for cell in CELLS if cell[2] in sources]
    store, operator, source = cells[seed % len(cells)]
    back_to = chance.randint(0, 3)
    wrong_until = back_to + chance.randint(1, 4)
    right_until = back_to + chance.randint(2, 5)
    boundaries = chance.choice(list(Boundaries))
    return Story(
        seed=seed,
        store=store,
        operator=operator,
        source=source,
        back_to=back_to,
        wrong_until=wrong_until,
        right_until=right_until,
        restart_at=chance.randint(back_to + 1, right_until - 1),
        shift=chance.choice((1, 2, 100)),
        boundaries=boundaries,
        has_savepoint=chance.random() < 0.4,
    )


@dataclass(frozen=True, slots=True)
class Ending:
    """`differing` has the batches whose rows differ from the query without a wrong turn."""

    story: Story
    differing: tuple[int, ...]
    expected: dict[int, Rows]
    found: dict[int, Rows]
    findings: tuple[str, ...]  # the doctor's findings about the fork at its end
    touched: tuple[str, ...]  # changed files of the original

    @property
    def is_right(self) -> bool:
        return not self.differing and not self.findings and not self.touched


def rewind(
    spark: SparkSession, story: Story, home: Path, broker: KafkaBroker | None = None
) -> Ending:
    """Runs one rewind.

    A story whose source is Kafka needs `broker` and a session with the connector.
    """
    STORES[story.store].apply(spark)
    query = _query(story, home / "input", broker)
    original, target = home / "original", home / "fork"
    query.run(spark, original, shift=0, until=story.wrong_until)
    end_maintenance(spark)
    before = _fingerprint(original.rename(home / "original-elsewhere"))
    original = home / "original-elsewhere"
    _fork(story, home, original, target)
    after = _fingerprint(original)
    touched = sorted(name for name in before | after if before.get(name) != after.get(name))
    shutil.rmtree(original)  # a fork needs nothing from it
    found = _go_on(spark, query, target, story)
    never = _query(story, home / "input-of-reference", broker)
    never.run(spark, home / "reference", shift=0, until=story.back_to)
    expected = _go_on(spark, never, home / "reference", story)
    findings = examine(read_query(str(target), [str(home)]))
    return Ending(
        story=story,
        differing=tuple(
            batch
            for batch in range(story.back_to + 1, story.right_until + 1)
            if expected[batch] != found.get(batch)
        ),
        expected=expected,
        found=found,
        findings=tuple(each.text for each in findings),
        touched=tuple(touched),
    )


def _query(story: Story, folder: Path, broker: KafkaBroker | None) -> Query:
    folder.mkdir()
    left, right = (
        Input(story.source, folder / side, _topic(story, broker)) for side in ("left", "right")
    )
    return Query(story.operator, left, right)


def _topic(story: Story, broker: KafkaBroker | None) -> Topic | None:
    if story.source != "kafka":
        return None
    assert broker is not None, "the source of this story is Kafka"
    return Topic(broker)


def _fork(story: Story, home: Path, original: Path, target: Path) -> None:
    roots = [str(home)]
    origin = original
    if story.has_savepoint:
        origin = home / "savepoint"
        take_savepoint(
            tree_at(str(original), roots),
            read_query(str(original), roots),
            tree_at(str(origin), roots),
            SavepointRequest(
                batch_id=story.back_to,
                label="before the wrong turn",
                taken_ms=0,
                keeps_next=story.boundaries is Boundaries.SAME,
            ),
        )
    fork(
        tree_at(str(origin), roots),
        read_query(str(origin), roots),
        tree_at(str(target), roots),
        ForkRequest(batch_id=story.back_to, boundaries=story.boundaries),
    )


def _go_on(spark: SparkSession, query: Query, checkpoint: Path, story: Story) -> dict[int, Rows]:
    """Continues with the changed code, restarted once."""
    until = (story.restart_at, story.right_until)
    runs = [query.run(spark, checkpoint, shift=story.shift, until=each) for each in until]
    return {**runs[0], **runs[1]}


def _fingerprint(directory: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for file in directory.rglob("*"):
        if file.is_file():
            status = file.stat()
            found[str(file.relative_to(directory))] = (status.st_size, status.st_mtime_ns)
    return found
