"""Names of Kafka transactions: the name alone tells the owner."""

import pytest

from pipelines.connectors.kafka.connection import KafkaAddress, python_settings
from pipelines.connectors.kafka.sink import KafkaOwnership, TransactionName
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Attempt, RunId, Uid

OURS = KafkaOwnership("delays", "out")


@pytest.mark.parametrize("uid", ["sink", "a/b", "t/1/2/3", "50% off", "-", ".*"])
def test_a_transaction_name_is_parsed_back_as_written(uid: str) -> None:
    name = TransactionName(Uid(uid), RunId("run/1"), Attempt(2), 3, 4)

    assert OURS.name_of(OURS.id_of(name)) == name


@pytest.mark.parametrize(
    "stranger",
    [
        KafkaOwnership("delays-2", "out"),
        KafkaOwnership("delays", "out2"),
        KafkaOwnership("delays/out", "x"),
        KafkaOwnership("dela.s", "out"),
    ],
)
def test_a_name_of_another_pipeline_or_topic_is_foreign(stranger: KafkaOwnership) -> None:
    name = TransactionName(Uid("sink"), RunId("run-1"), Attempt(1), 0, 1)

    assert OURS.name_of(stranger.id_of(name)) is None
    assert stranger.name_of(OURS.id_of(name)) is None


def test_a_log_id_is_not_taken_for_a_transaction_to_end() -> None:
    assert OURS.name_of(OURS.log_id(Uid("sink"), RunId("run-1"), 0)) is None
    assert OURS.name_of(f"{OURS.prefix}/validation") is None


@pytest.mark.parametrize(
    ("transactional_id", "is_left_behind"),
    [
        (OURS.log_id(Uid("out/1"), RunId("run-0"), 3), True),
        (OURS.log_id(Uid("out/1"), RunId("run-1"), 3), False),
        (KafkaOwnership("other", OURS.topic).log_id(Uid("out"), RunId("run-0"), 3), False),
        (f"{OURS.prefix}/validation", False),
        (f"{OURS.log_id(Uid('out'), RunId('run-0'), 3)}x", False),
    ],
)
def test_the_log_of_another_run_is_known_by_its_name(
    transactional_id: str, is_left_behind: bool
) -> None:
    assert OURS.is_log_of_another_run(transactional_id, RunId("run-1")) is is_left_behind


def test_security_settings_are_translated_for_the_other_client() -> None:
    security = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "s3cret",
        "ssl.endpoint.identification.algorithm": "none",
    }

    settings = python_settings(KafkaAddress("a:1,b:2", security))

    assert settings["bootstrap_servers"] == ["a:1", "b:2"]
    assert settings["security_protocol"] == "SASL_SSL"
    assert settings["sasl_plain_password"] == "s3cret"
    assert settings["ssl_check_hostname"] is False


def test_a_security_setting_without_counterpart_is_named_without_its_value() -> None:
    with pytest.raises(Rejected, match=r"setting ssl\.key\.pem is not known") as refused:
        python_settings(KafkaAddress("a:1", {"ssl.key.pem": "s3cret"}))

    assert "s3cret" not in str(refused.value)
