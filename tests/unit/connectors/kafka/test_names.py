"""Names for Kafka: an invalid one is refused at once, without asking the broker or the client."""

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from pipelines.connectors.kafka.connection import KafkaAddress
from pipelines.connectors.kafka.topics import KafkaTopics
from pipelines.connectors.kafka.transactions import ExactlyOnceKafka
from pipelines.connectors.kafka.values import JsonValues
from pipelines.connectors.kafka.write_ahead import WriteAheadKafka
from pipelines.domain.errors import Rejected
from tests.hostile_names import HOSTILE, LONG, NUL

if TYPE_CHECKING:
    from pipelines.connectors.kafka.sink import KafkaSink

SCHEMA = pa.schema([("key", pa.int64())])
NOWHERE = KafkaAddress("127.0.0.1:1")
LONGEST = "x" * 249
NO_TOPICS = ["", ".", "..", "../t", "^t.*", "a*", "a{b}", "a\nb", "t\n", "t;u", "ü", f"{LONGEST}x"]


@pytest.mark.parametrize("topic", [*NO_TOPICS, HOSTILE, NUL, LONG], ids=repr)
def test_an_invalid_topic_name_is_refused_in_one_sentence(topic: str) -> None:
    with pytest.raises(Rejected) as of_source:
        KafkaTopics(NOWHERE, ("good", topic), format=JsonValues(SCHEMA))

    for kind in (ExactlyOnceKafka, WriteAheadKafka):
        sink: KafkaSink = kind(NOWHERE, topic, pipeline="p")
        with pytest.raises(Rejected) as of_sink:
            sink.validate(SCHEMA)
        assert str(of_sink.value) == str(of_source.value)
    assert str(of_source.value).startswith("A Kafka topic is named by up to 249 letters")
    assert str(of_source.value).isprintable()
    assert len(str(of_source.value)) < 200


@pytest.mark.parametrize("topic", ["a", "A.b_c-9", "...", LONGEST], ids=repr)
def test_every_valid_topic_name_is_accepted(topic: str) -> None:
    assert KafkaTopics(NOWHERE, (topic,), format=JsonValues(SCHEMA)).topics == (topic,)


@pytest.mark.parametrize(
    ("group", "sentence"),
    [
        ("", "needs a name; leave it out to commit none"),
        (NUL, "is named by text without NUL"),
        ("\ud800", "is named by text without NUL"),
    ],
    ids=["empty", "NUL", "half a character"],
)
def test_a_group_name_that_would_abort_the_client_is_refused(group: str, sentence: str) -> None:
    """The client takes such a name for no name at all, and aborts."""
    with pytest.raises(Rejected, match=rf"^[ -~]*Kafka group [ -~]*{sentence}[ -~]*\.$"):
        KafkaTopics(NOWHERE, ("t",), format=JsonValues(SCHEMA), group=group)
