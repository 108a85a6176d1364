"""Every contradiction between settings, with its sentence."""

import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.settings.parsing import RULES, RULES_OF_GIVEN, parse_settings

C = "execution.checkpointing."
CAP = C + "alignment-buffer."
POISON = "execution.poison-records."
REPEATED = "restart-strategy.repeated-failure."
TLS = "security.ssl.internal."
CASES: list[tuple[str, dict[str, str], str]] = [
    (
        "_heartbeats_fit_their_timeout",
        {"heartbeat.interval": "6 s"},
        "heartbeat.interval (6000 ms) is more than half",
    ),
    (
        "_memory_has_no_directory",
        {C + "storage": "jobmanager", C + "dir": "/points"},
        "keeps nothing in a directory",
    ),
    (
        "_pause_means_one_at_a_time",
        {C + "min-pause": "1 s", C + "max-concurrent-checkpoints": "2"},
        "needs checkpoints one after the other",
    ),
    (
        "_backoff_grows",
        {"restart-strategy.exponential-delay.initial-backoff": "2 min"},
        "is longer than max-backoff (60000 ms)",
    ),
    (
        "_overtaking_needs_exactly_once",
        {C + "unaligned.enabled": "true", C + "mode": "AT_LEAST_ONCE"},
        "needs execution.checkpointing.mode EXACTLY_ONCE, not AT_LEAST_ONCE",
    ),
    (
        "_overtaking_is_done_by_one",
        {C + "unaligned.enabled": "true", C + "max-concurrent-checkpoints": "2"},
        "records in flight belong to one checkpoint",
    ),
    (
        "_timeout_needs_overtaking",
        {C + "aligned-checkpoint-timeout": "1 s"},
        "has no effect without execution.checkpointing.unaligned.enabled true",
    ),
    (
        "_cap_needs_alignment",
        {CAP + "max-size-per-channel": "1 mb", C + "mode": "AT_LEAST_ONCE"},
        "which holds nothing back",
    ),
    ("_cap_needs_alignment", {CAP + "when-exceeded": "abort"}, "but no cap is set"),
    (
        "_cap_needs_alignment",
        {
            CAP + "when-exceeded": "unaligned",
            CAP + "max-size-per-subtask": "1 mb",
            C + "max-concurrent-checkpoints": "2",
        },
        "when-exceeded unaligned needs",
    ),
    (
        "_at_most_once_needs_checkpoints",
        {C + "mode": "AT_MOST_ONCE", C + "interval": "off"},
        "needs periodic checkpoints",
    ),
    (
        "_at_most_once_needs_checkpoints",
        {C + "mode": "AT_MOST_ONCE", C + "checkpoints-after-tasks-finish": "false"},
        "the last records of a source come out only with a checkpoint after its end",
    ),
    (
        "_memory_keeps_whole_checkpoints",
        {C + "storage": "jobmanager", C + "incremental": "true"},
        "has no files that a later checkpoint could refer to",
    ),
    (
        "_pause_needs_an_interval",
        {C + "min-pause": "1 s", C + "interval": "off"},
        "delays periodic checkpoints, and execution.checkpointing.interval is off",
    ),
    (
        "_alignment_fits_the_timeout",
        {
            C + "unaligned.enabled": "true",
            C + "aligned-checkpoint-timeout": "10 min",
        },
        "would expire before its barriers overtake",
    ),
    ("_files_need_encryption", {TLS + "key-file": "/key.pem"}, "nothing would be encrypted"),
    (
        "_memory_retains_nothing",
        {
            C + "storage": "jobmanager",
            C + "externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        },
        "whose memory ends with the run",
    ),
    (
        "_reading_ahead_needs_at_most_once",
        {C + "at-most-once.read-ahead": "1 mb"},
        "reads nothing ahead",
    ),
    (
        "_topology_needs_acking",
        {"topology.max.spout.pending": "5"},
        "topology.max.spout.pending has no effect with execution.checkpointing.mode EXACTLY_ONCE",
    ),
    (
        "_quarantine_needs_a_second_try",
        {POISON + "policy": "quarantine", C + "mode": "AT_MOST_ONCE"},
        "needs execution.checkpointing.mode EXACTLY_ONCE or AT_LEAST_ONCE, not AT_MOST_ONCE",
    ),
    (
        "_quarantine_needs_a_second_try",
        {POISON + "policy": "quarantine", C + "unaligned.enabled": "true"},
        "needs barriers that overtake nothing",
    ),
    (
        "_quarantine_needs_a_second_try",
        {
            POISON + "policy": "quarantine",
            CAP + "when-exceeded": "unaligned",
            CAP + "max-size-per-subtask": "1 mb",
        },
        "needs barriers that overtake nothing",
    ),
    (
        "_quarantine_needs_a_second_try",
        {POISON + "policy": "quarantine", "restart-strategy.type": "none"},
        "needs restarts",
    ),
    (
        "_quarantine_needs_a_second_try",
        {
            POISON + "policy": "quarantine",
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "100",
            "restart-strategy.fixed-delay.delay": "899 ms",
        },
        "min-tries is 3 and restart-strategy.repeated-failure.min-duration is 90000 ms, and"
        " restart-strategy.type fixed-delay may give up before",
    ),
    (
        "_quarantine_needs_a_second_try",
        {
            POISON + "policy": "quarantine",
            REPEATED + "min-duration": "0",
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "1",
        },
        "fixed-delay may give up before",
    ),
    (
        "_quarantine_needs_a_second_try",
        {POISON + "policy": "quarantine", "restart-strategy.type": "failure-rate"},
        "failure-rate may give up before",
    ),
    (
        "_quarantine_needs_a_second_try",
        {
            POISON + "policy": "quarantine",
            "restart-strategy.exponential-delay.attempts-before-reset-backoff": "15",
        },
        "exponential-delay may give up before",
    ),
    ("_limit_needs_quarantine", {POISON + "limit": "5"}, "sets no record aside"),
]


@pytest.mark.parametrize(("rule", "given", "sentence"), CASES)
def test_each_contradiction_is_refused_with_its_own_sentence(
    rule: str, given: dict[str, str], sentence: str
) -> None:
    with pytest.raises(Rejected) as refusal:
        parse_settings(given)

    said = str(refusal.value)
    assert sentence in said, rule
    assert said.endswith(".")
    assert any(key.rpartition(".")[0] in said for key in given)


def test_every_rule_has_a_contradicting_case() -> None:
    rules = {rule.__name__ for rule in (*RULES, *RULES_OF_GIVEN)}

    assert {rule for rule, _, _ in CASES} == rules
