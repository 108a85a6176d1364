"""Settings: Flink's keys, strict values, and sentences that name what is wrong."""

from dataclasses import fields, is_dataclass

import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.settings import CheckpointStorage, Settings, check_parallelism
from pipelines.domain.settings.parsing import (
    DEFINITIONS,
    changed_settings,
    parse_settings,
    read_settings,
)
from pipelines.domain.settings.readers import Definition, definition_of


def test_without_any_setting_the_defaults_of_the_table_hold() -> None:
    settings = parse_settings({})

    assert settings.checkpointing.interval_ms == 1_000
    assert settings.checkpointing.timeout_ms == 600_000
    assert settings.checkpointing.min_pause_ms == 0
    assert settings.checkpointing.tolerable_failures == 0
    assert (settings.restart.strategy, settings.restart.exponential_delay.initial_ms) == (
        "exponential-delay",
        100,
    )


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: str(d.key))
def test_a_setting_fills_the_field_that_declares_it_and_no_other(definition: Definition) -> None:
    usual = declared_values(Settings, parse_settings({}))
    text, value = another_value(definition)

    found = declared_values(Settings, read_settings({definition.key: text}))

    assert found == {**usual, definition.key: value}


def test_no_two_settings_have_the_same_key() -> None:
    assert len({each.key for each in DEFINITIONS}) == len(DEFINITIONS)


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [("500 ms", 500), ("2s", 2_000), ("10 min", 600_000), ("1 h", 3_600_000), ("1 d", 86_400_000)],
)
def test_a_duration_is_a_whole_number_with_a_unit(text: str, expected_ms: int) -> None:
    settings = parse_settings({"execution.checkpointing.interval": text})

    assert settings.checkpointing.interval_ms == expected_ms


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("execution.checkpointing.interval", "soon"),
        ("execution.checkpointing.interval", "1"),
        ("execution.checkpointing.interval", "-1 s"),
        ("execution.checkpointing.interval", "0"),
        ("execution.checkpointing.interval", "1.5 s"),
        ("execution.checkpointing.num-retained", "0"),
        ("execution.checkpointing.num-retained", "²"),
        ("execution.checkpointing.tolerable-failed-checkpoints", "-1"),
        ("execution.checkpointing.max-concurrent-checkpoints", "0"),
        ("execution.checkpointing.mode", "ALMOST_ONCE"),
        ("restart-strategy.type", "sometimes"),
        ("restart-strategy.exponential-delay.backoff-multiplier", "1"),
        ("restart-strategy.exponential-delay.backoff-multiplier", "nan"),
        ("restart-strategy.exponential-delay.jitter-factor", "1.1"),
        ("restart-strategy.exponential-delay.jitter-factor", "-0.1"),
        ("restart-strategy.exponential-delay.initial-backoff", "0"),
        ("restart-strategy.failure-rate.max-failures-per-interval", "0"),
        ("restart-strategy.fixed-delay.attempts", "many"),
        ("heartbeat.timeout", "1 ms"),
        ("execution.checkpointing.storage", "disk"),
        ("jobmanager.rpc.address", "host:6123"),
        ("jobmanager.rpc.address", "-host"),
        ("jobmanager.rpc.port", "65536"),
        ("taskmanager.bind-host", "a b"),
        ("security.ssl.internal.enabled", "yes"),
        ("security.ssl.internal.key-file", "key.pem"),
        ("execution.checkpointing.dir", "relative/path"),
        ("execution.checkpointing.dir", "s3:bucket"),
        ("execution.checkpointing.dir", "gs://bucket/x"),
        ("execution.checkpointing.dir", "file://host/x"),
        ("execution.checkpointing.savepoint-dir", "memory://run"),
        ("execution.checkpointing.jobmanager.max-state-size", "5"),
        ("execution.checkpointing.jobmanager.max-state-size", "0 b"),
        ("execution.checkpointing.jobmanager.max-state-size", "1 gb"),
    ],
)
def test_a_bad_value_is_refused_by_key_and_value(key: str, value: str) -> None:
    with pytest.raises(Rejected) as refusal:
        parse_settings({key: value})

    assert key in str(refusal.value)
    assert repr(value) in str(refusal.value)


def test_an_unknown_key_is_refused_with_the_closest_known_one() -> None:
    with pytest.raises(Rejected) as refusal:
        parse_settings({"execution.checkpointing.intervall": "1 s"})

    assert "'execution.checkpointing.intervall'" in str(refusal.value)
    assert "did you mean execution.checkpointing.interval?" in str(refusal.value)


def test_an_unknown_key_like_no_other_is_refused_without_a_guess() -> None:
    with pytest.raises(Rejected, match="'zzz'; no known setting"):
        parse_settings({"zzz": "1"})


@pytest.mark.parametrize("parallelism", [1, 2, 128])
def test_a_parallelism_from_one_to_the_maximum_is_accepted(parallelism: int) -> None:
    check_parallelism(parallelism, 128)

    with pytest.raises(Rejected):
        check_parallelism(parallelism, parallelism - 1)


@pytest.mark.parametrize(
    ("parallelism", "max_parallelism", "named"),
    [(0, 128, "0"), (-1, 128, "-1"), (129, 128, "129"), (1, 0, "0"), (1, 32_769, "32769")],
)
def test_an_impossible_parallelism_is_refused_by_number(
    parallelism: int, max_parallelism: int, named: str
) -> None:
    with pytest.raises(Rejected, match=f"parallelism cannot be {named};"):
        check_parallelism(parallelism, max_parallelism)


def test_a_first_backoff_beyond_the_longest_is_refused_with_both_values() -> None:
    exponential = "restart-strategy.exponential-delay."

    with pytest.raises(Rejected, match=r"initial-backoff \(2000 ms\).*max-backoff \(1000 ms\)"):
        parse_settings({exponential + "initial-backoff": "2 s", exponential + "max-backoff": "1 s"})


@pytest.mark.parametrize("text", ["none", "off", "disable", "NONE"])
def test_restarts_are_turned_off_by_any_of_flinks_words(text: str) -> None:
    assert parse_settings({"restart-strategy.type": text}).restart.strategy == "none"


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("/data/points/", "/data/points"),
        ("file:///data/points", "/data/points"),
        ("s3://bucket/prefix/", "s3://bucket/prefix"),
        ("s3://bucket", "s3://bucket"),
        ("/", "/"),
        ("", ""),
    ],
)
def test_a_place_is_a_path_or_a_prefix_in_a_bucket(given: str, place: str) -> None:
    assert parse_settings({"execution.checkpointing.dir": given}).storage.checkpoint_dir == place


@pytest.mark.parametrize(("text", "size"), [("64 b", 64), ("512 KB", 512 << 10), ("5mb", 5 << 20)])
def test_a_size_is_a_whole_number_with_a_unit(text: str, size: int) -> None:
    settings = parse_settings({"execution.checkpointing.jobmanager.max-state-size": text})

    assert settings.storage.max_memory_state_bytes == size


def test_a_directory_contradicts_storage_in_memory() -> None:
    given = {
        "execution.checkpointing.storage": "jobmanager",
        "execution.checkpointing.savepoint-dir": "/savepoints",  # savepoints are always files
    }
    parse_settings(given)

    with pytest.raises(Rejected, match=r"dir is set, but .*storage is jobmanager"):
        parse_settings({**given, "execution.checkpointing.dir": "/checkpoints"})


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (
            {
                "execution.checkpointing.min-pause": "1 s",
                "execution.checkpointing.max-concurrent-checkpoints": "2",
            },
            ["execution.checkpointing.min-pause", "max-concurrent-checkpoints is 2"],
        ),
        (
            {
                "execution.checkpointing.storage": "jobmanager",
                "execution.checkpointing.externalized-checkpoint-retention": (
                    "RETAIN_ON_CANCELLATION"
                ),
            },
            ["externalized-checkpoint-retention is RETAIN", "execution.checkpointing.storage"],
        ),
        (
            {
                "execution.checkpointing.storage": "jobmanager",
                "execution.checkpointing.incremental": "true",
            },
            ["execution.checkpointing.incremental is true", "storage is jobmanager"],
        ),
        (
            {
                "execution.checkpointing.min-pause": "1 s",
                "execution.checkpointing.interval": "off",
            },
            ["execution.checkpointing.min-pause", "interval is off"],
        ),
        (
            {"security.ssl.internal.ca-file": "/etc/ca.pem"},
            ["security.ssl.internal.enabled is false"],
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused_by_their_names(
    given: dict[str, str], named: list[str]
) -> None:
    with pytest.raises(Rejected) as refusal:
        parse_settings(given)

    assert all(name in str(refusal.value) for name in named), refusal.value


def test_a_heartbeat_that_comes_too_rarely_for_its_timeout_is_refused() -> None:
    with pytest.raises(Rejected, match=r"heartbeat\.interval \(600 ms\).*timeout \(1000 ms\)"):
        parse_settings({"heartbeat.interval": "600 ms", "heartbeat.timeout": "1 s"})


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1", "driver-1.internal", "0.0.0.0"])
def test_an_address_is_a_name_or_a_number(host: str) -> None:
    assert parse_settings({"jobmanager.rpc.address": host}).network.driver_host == host


def test_storage_in_memory_is_accepted_when_retention_is_not_requested() -> None:
    settings = parse_settings({"execution.checkpointing.storage": "jobmanager"})

    assert settings.storage.kind is CheckpointStorage.JOBMANAGER


def test_an_interval_that_is_off_is_none() -> None:
    settings = parse_settings({"execution.checkpointing.interval": "off"})

    assert settings.checkpointing.interval_ms is None


def test_changed_settings_of_a_live_run_are_merged_with_the_rest() -> None:
    given = {"execution.checkpointing.timeout": "1 min", "heartbeat.timeout": "5 s"}

    changed = changed_settings(given, {"execution.checkpointing.timeout": "2 min"})

    assert changed == {"execution.checkpointing.timeout": "2 min", "heartbeat.timeout": "5 s"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "Name a setting to change: execution.checkpointing.interval, .*"),
        ({"heartbeat.timeout": "5 s"}, "heartbeat.timeout cannot change during a run"),
        ({"execution.checkpointing.intervall": "5 s"}, "did you mean"),
        ({"execution.checkpointing.interval": "soon"}, "cannot be 'soon'"),
        ({"execution.checkpointing.min-pause": "1 s"}, "max-concurrent-checkpoints is 3"),
    ],
)
def test_a_change_that_a_start_would_refuse_is_refused(
    changes: dict[str, str], sentence: str
) -> None:
    given = {"execution.checkpointing.max-concurrent-checkpoints": "3"}

    with pytest.raises(Rejected, match=sentence):
        changed_settings(given, changes)


def declared_values(group: type, values: object) -> dict[str, object]:
    """Maps the key that each field declares to its value, at any depth."""
    found: dict[str, object] = {}
    for each in fields(group):
        value = getattr(values, each.name)
        if is_dataclass(value):
            found |= declared_values(type(value), value)
        else:
            found[definition_of(each).key] = value
    return found


CANDIDATES = (
    *("true", "false", "7", "0.7", "7 s", "700 ms", "7 mb", "/place", "a.host", "kill published"),
    *("AT_LEAST_ONCE", "DELETE_ON_CANCELLATION", "fixed-delay", "abort", "fail", "quarantine"),
    *("rocksdb", "jobmanager"),
)


def another_value(definition: Definition) -> tuple[str, object]:
    """Returns the first candidate that is valid and not the default."""
    for text in CANDIDATES:
        try:
            value = definition.parse(text)
        except Rejected:
            continue
        if value != definition.parse(definition.default):
            return text, value
    raise AssertionError(f"no candidate fits {definition.key}")
