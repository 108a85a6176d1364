"""The whole table of settings: nonsense is refused, and no default differs from Flink silently."""

import re

import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.settings.parsing import DEFINITIONS, RENAMED, parse_settings, why_absent
from pipelines.domain.settings.readers import Definition

KEYS = {definition.key: definition for definition in DEFINITIONS}
NONSENSE = (
    "",
    "nan",
    "inf",
    "-1",
    "-1 s",
    "1 parsec",
    "3651 d",
    "999999999999 d",
    "999999999999 gb",
    "2147483648",
    "99999999999999999999",
    "1e400",
    "0x10",
    "maybe",
    "[]",
    "²",
    "a\nb",
    "/a\x00b",
)
PATHS = {
    "testing.faults",
    "state.backend.rocksdb.localdir",
    "execution.checkpointing.dir",
    "execution.checkpointing.savepoint-dir",
    "security.ssl.internal.certificate-file",
    "security.ssl.internal.key-file",
    "security.ssl.internal.ca-file",
}
NAMES = {"jobmanager.bind-host", "taskmanager.host", "taskmanager.bind-host"}
ANY_NAME = {"nan", "inf", "2147483648", "99999999999999999999", "1e400", "0x10", "maybe"}
TAKEN = {
    **{key: {""} for key in PATHS},
    **{key: {"", *ANY_NAME} for key in NAMES},
    "jobmanager.rpc.address": ANY_NAME,
}
"""The nonsense that a key accepts: these keys take free text, and an empty text means not set."""


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: str(d.key))
def test_nonsense_is_refused_in_one_sentence_that_names_key_and_value(
    definition: Definition,
) -> None:
    taken = set()
    for text in NONSENSE:
        try:
            definition.parse(text)
        except Rejected as refusal:
            said = str(refusal)
            assert said.startswith(f"The setting {definition.key} cannot be {text!r}: expected ")
            assert said.endswith(".")
            assert "\n" not in said
        else:
            taken.add(text)

    assert taken == TAKEN.get(definition.key, set())


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: str(d.key))
def test_every_default_is_a_value_that_a_person_could_have_given(definition: Definition) -> None:
    assert definition.parse(str(definition.default)) == definition.parse(f" {definition.default} ")


MOMENT = (("0 ms", "1 ms"), ("3650 d", "3651 d"))
MOMENT_OR_NONE = (("-1 ms", "0 ms"), ("3650 d", "3651 d"))
COUNT = (("0", "1"), ("2147483647", "2147483648"))
COUNT_OR_NONE = (("-1", "0"), ("2147483647", "2147483648"))
KILOBYTE = (("1023 b", "1 kb"), ("1024 gb", "1025 gb"))
ENDS = {
    "execution.checkpointing.interval": (("9 ms", "10 ms"), ("3650 d", "3651 d")),
    "execution.checkpointing.timeout": (("9 ms", "10 ms"), ("3650 d", "3651 d")),
    "execution.checkpointing.min-pause": MOMENT_OR_NONE,
    "execution.checkpointing.max-concurrent-checkpoints": COUNT,
    "execution.checkpointing.tolerable-failed-checkpoints": COUNT_OR_NONE,
    "execution.checkpointing.num-retained": COUNT,
    "execution.checkpointing.at-most-once.read-ahead": KILOBYTE,
    "execution.checkpointing.aligned-checkpoint-timeout": MOMENT_OR_NONE,
    "execution.checkpointing.alignment-buffer.max-size-per-channel": KILOBYTE,
    "execution.checkpointing.alignment-buffer.max-size-per-subtask": KILOBYTE,
    "execution.checkpointing.verification-interval": MOMENT_OR_NONE,
    "execution.checkpointing.jobmanager.max-state-size": (("0 b", "1 b"), ("16 mb", "17 mb")),
    "execution.poison-records.limit": (("0", "1"), ("1000", "1001")),
    "pipeline.upgrade.checkpoints": COUNT,
    "pipeline.upgrade.timeout": (("999 ms", "1 s"), ("3650 d", "3651 d")),
    "topology.acker.executors": (("-1", "0"), ("1000", "1001")),
    "topology.message.timeout.secs": (("0", "1"), ("86400", "86401")),
    "topology.max.spout.pending": (("0", "1"), ("10000000", "10000001")),
    "restart-strategy.fixed-delay.attempts": COUNT_OR_NONE,
    "restart-strategy.fixed-delay.delay": MOMENT_OR_NONE,
    "restart-strategy.failure-rate.max-failures-per-interval": COUNT,
    "restart-strategy.failure-rate.failure-rate-interval": MOMENT,
    "restart-strategy.failure-rate.delay": MOMENT_OR_NONE,
    "restart-strategy.exponential-delay.initial-backoff": MOMENT,
    "restart-strategy.exponential-delay.max-backoff": MOMENT,
    "restart-strategy.exponential-delay.backoff-multiplier": (
        ("1", "1.000000001"),
        ("1000", "1000.1"),
    ),
    "restart-strategy.exponential-delay.reset-backoff-threshold": MOMENT,
    "restart-strategy.exponential-delay.jitter-factor": (("-0.1", "0"), ("1", "1.000000001")),
    "restart-strategy.exponential-delay.attempts-before-reset-backoff": COUNT_OR_NONE,
    "restart-strategy.repeated-failure.min-tries": (("1", "2"), ("1000", "1001")),
    "restart-strategy.repeated-failure.min-duration": MOMENT_OR_NONE,
    "heartbeat.interval": (("9 ms", "10 ms"), ("3650 d", "3651 d")),
    "heartbeat.timeout": (("99 ms", "100 ms"), ("3650 d", "3651 d")),
    "heartbeat.driver-timeout": (("2999 ms", "3 s"), ("3650 d", "3651 d")),
    "slot.request.timeout": (("99 ms", "100 ms"), ("3650 d", "3651 d")),
    "execution.state-recovery.standstill-timeout": (("99 ms", "100 ms"), ("3650 d", "3651 d")),
    "state.backend.rocksdb.memory.fixed-per-slot": (("1023 kb", "1 mb"), ("1024 gb", "1025 gb")),
    "jobmanager.rpc.port": (("-1", "0"), ("65535", "65536")),
    "pipeline.coalescing.max-rows": (("0", "1"), ("1048576", "1048577")),
    "pipeline.coalescing.max-wait": (("-1 ms", "0 ms"), ("1 s", "1001 ms")),
    "pipeline.coalescing.max-work": (("-1 ms", "0 ms"), ("1 min", "60001 ms")),
    "taskmanager.network.memory.buffer-debloat.target": (("9 ms", "10 ms"), ("1 min", "60001 ms")),
    "taskmanager.network.memory.buffer-debloat.period": (("0", "1 ms"), ("10 s", "10001 ms")),
    "taskmanager.network.memory.buffer-debloat.samples": (("0", "1"), ("1000", "1001")),
    "taskmanager.network.memory.buffer-debloat.threshold-percentages": (
        ("-1", "0"),
        ("100", "101"),
    ),
}
"""Each numeric setting's limits: (below the least, the least), (the most, above the most)."""


def test_every_numeric_setting_has_its_bounds_listed() -> None:
    numbers = {d.key for d in DEFINITIONS if type(d.parse(d.default)) in (int, float)}

    assert numbers == set(ENDS)


@pytest.mark.parametrize("key", ENDS)
def test_a_number_is_accepted_at_both_bounds_and_refused_beyond_them(key: str) -> None:
    (below, least), (most, beyond) = ENDS[key]
    definition = KEYS[key]

    for taken in (least, most):
        assert definition.parse(taken) is not None
    for refused in (below, beyond):
        with pytest.raises(Rejected, match=f"{re.escape(key)} cannot be {refused!r}: expected "):
            definition.parse(refused)


FLINK = {
    "execution.checkpointing.interval": None,  # off
    "execution.checkpointing.timeout": "10 min",
    "execution.checkpointing.min-pause": "0",
    "execution.checkpointing.max-concurrent-checkpoints": "1",
    "execution.checkpointing.tolerable-failed-checkpoints": "0",
    "execution.checkpointing.num-retained": "1",
    "execution.checkpointing.externalized-checkpoint-retention": "NO_EXTERNALIZED_CHECKPOINTS",
    "execution.checkpointing.checkpoints-after-tasks-finish": "true",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "execution.checkpointing.unaligned.enabled": "false",
    "execution.checkpointing.aligned-checkpoint-timeout": "0",
    "execution.checkpointing.incremental": "false",
    "execution.checkpointing.snapshot-compression": "false",
    "execution.checkpointing.storage": "jobmanager",
    "execution.checkpointing.dir": "",
    "execution.checkpointing.savepoint-dir": "",
    "restart-strategy.type": "exponential-delay",
    "restart-strategy.fixed-delay.attempts": "1",
    "restart-strategy.fixed-delay.delay": "1 s",
    "restart-strategy.failure-rate.max-failures-per-interval": "1",
    "restart-strategy.failure-rate.failure-rate-interval": "1 min",
    "restart-strategy.failure-rate.delay": "1 s",
    "restart-strategy.exponential-delay.initial-backoff": "1 s",
    "restart-strategy.exponential-delay.max-backoff": "1 min",
    "restart-strategy.exponential-delay.backoff-multiplier": "1.5",
    "restart-strategy.exponential-delay.reset-backoff-threshold": "1 h",
    "restart-strategy.exponential-delay.jitter-factor": "0.1",
    "restart-strategy.exponential-delay.attempts-before-reset-backoff": "2147483647",
    "heartbeat.interval": "10 s",
    "heartbeat.timeout": "50 s",
    "slot.request.timeout": "5 min",
    "state.backend.type": "hashmap",
    "state.backend.rocksdb.localdir": "",
    "jobmanager.rpc.port": "6123",
    "taskmanager.bind-host": "0.0.0.0",
    "security.ssl.internal.enabled": "false",
}
"""Flink 2.3's defaults for the keys that ftdash has too."""

DIFFERENT = {
    "execution.checkpointing.interval",
    "execution.checkpointing.num-retained",
    "execution.checkpointing.externalized-checkpoint-retention",
    "execution.checkpointing.storage",
    "restart-strategy.exponential-delay.initial-backoff",
    "heartbeat.interval",
    "heartbeat.timeout",
    "jobmanager.rpc.port",
    "taskmanager.bind-host",
}


def test_only_these_defaults_differ_from_flinks_and_each_help_says_so() -> None:
    different = {key for key, default in FLINK.items() if KEYS[key].default != default}

    assert different == DIFFERENT
    for key in different:
        assert "Flink" in KEYS[key].help, key


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("execution.checkpointing.interval-during-backlog", "no source here reports a backlog"),
        ("execution.checkpointing.cleaner.parallel-mode", "deleted on other threads"),
        ("execution.checkpointing.unaligned.forced", "no iterations"),
        ("execution.checkpointing.file-merging.max-file-size", "writes few files"),
        ("execution.checkpointing.local-backup.dirs", "no copy is kept"),
        ("execution.state-recovery.claim-mode", "when you restore"),
        ("state.changelog.periodic-materialize.interval", "no changelog backend"),
        ("state.backend.rocksdb.checkpoint.transfer.thread.num", "only memory.fixed-per-slot"),
        ("jobmanager.execution.failover-strategy", "restarts as a whole"),
        ("pipeline.auto-generate-uids", "a uid of its own"),
        ("state.checkpoints.num-retained", "is called execution.checkpointing.num-retained here"),
        ("restart-strategy", "is called restart-strategy.type here"),
    ],
)
def test_an_absent_flink_setting_is_refused_with_what_holds_instead(key: str, said: str) -> None:
    with pytest.raises(Rejected) as refusal:
        parse_settings({key: "1"})

    assert repr(key) in str(refusal.value)
    assert said in str(refusal.value)


def test_no_existing_setting_is_treated_as_absent() -> None:
    assert [key for key in KEYS if why_absent(key)] == [
        key for key in KEYS if key.startswith("state.backend.rocksdb.")
    ], "the group says what holds for the others; known keys are asked for first"
    assert set(RENAMED.values()) <= set(KEYS)
    parsed = parse_settings({"state.backend.rocksdb.localdir": "/fast"})
    assert parsed.state.rocksdb_directory == "/fast"
