"""A stream is trimmed while its pipeline is stopped: the run passes only the accepted gap."""

import os
from pathlib import Path

import pytest

from pipelines.audit.auditor import audit
from pipelines.connectors.redis.stream_entries import offset_of
from pipelines.domain.commands import StopWithSavepoint
from pipelines.domain.errors import FailureKind
from pipelines.domain.events import FailureOccurred, LedgerBegun
from pipelines.domain.gaps import Gap
from pipelines.domain.ids import Uid
from pipelines.domain.status import JobStatus
from tests.brokers.redis_broker import RedisBroker
from tests.processes.host import hosted_run
from tests.processes.malformed import SERVER, numbers_in
from tests.processes.savepoint_requests import WHO, manifest_of, savepoint_by

pytestmark = pytest.mark.slow

STEP_S = 60.0
OFTEN = {"execution.checkpointing.interval": "50 ms"}
STREAM = "trimmed-while-stopped"


def test_a_run_passes_an_accepted_gap_and_its_ledger_records_it(
    tmp_path: Path, redis_server: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SERVER, redis_server.url)
    client, output = redis_server.client(), tmp_path / "output"
    environment = {SERVER: os.environ[SERVER]}
    parameters = {"system": "redis", "log": STREAM}
    flow: dict[str, object] = {"pipeline": "malformed"}

    def add(numbers: range) -> None:
        for number in numbers:
            client.xadd(STREAM, {"n": number, "at": number}, id=f"{number}-0")

    add(range(1, 6))
    with hosted_run(
        tmp_path, parameters, settings=OFTEN, spec_fields=flow, environment=environment
    ) as run:
        run.wait_for(lambda _: numbers_in(output) == [1, 2, 3, 4, 5], STEP_S)
        savepoint = savepoint_by(run, StopWithSavepoint(**WHO))
        run.wait_until_over(STEP_S)
    add(range(6, 21))
    client.xtrim(STREAM, minid="9-0", approximate=False)
    first, last = offset_of(b"5-1"), offset_of(b"9-0") - 1
    gap = Gap(source=Uid("events"), split=STREAM, first=first, last=last, records=3)
    again = flow | {"first_checkpoint_id": manifest_of(savepoint).checkpoint_id + 1}

    grown = gap.text.replace(str(last), str(last - 1))
    with hosted_run(
        tmp_path,
        parameters,
        settings=OFTEN,
        restore_from=str(savepoint),
        spec_fields=again | {"accepted_gaps": [grown]},
        environment=environment,
    ) as refused:
        ended = refused.wait_until_over(STEP_S)
    [failure] = [each.event for each in refused.of(FailureOccurred)]
    with hosted_run(
        tmp_path,
        parameters,
        settings=OFTEN | {"testing.faults": "kill committed slot=0 nth=1"},
        restore_from=str(savepoint),
        spec_fields=again | {"accepted_gaps": [gap.text]},
        environment=environment,
    ) as run:
        expected = [*range(1, 6), *range(9, 21)]
        run.wait_for(lambda _: numbers_in(output) == expected, STEP_S)
        run.wait_for(lambda _: len(run.of(LedgerBegun)) == 2, STEP_S)
        add(range(21, 31))
        run.wait_for(lambda _: numbers_in(output) == [*expected, *range(21, 31)], STEP_S)
        savepoint_by(run, StopWithSavepoint(**WHO))
        run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FAILED
    assert getattr(failure, "kind", None) is FailureKind.INPUT_LOST
    assert "No accepted gap is exactly that range." in ended.reason
    begun = [each.event for each in run.of(LedgerBegun)]
    assert [getattr(event, "gaps", None) for event in begun] == [[gap], [gap]]
    report = audit(run.directory)
    assert report.is_as_recorded
    assert [(each.gaps, each.records) for each in report.sources] == [([gap], 27)]
