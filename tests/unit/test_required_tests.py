"""If every test is required, a skipped test counts as failed, whatever the reason."""

import pytest

from tests import conftest


def test_where_every_test_is_required_a_skip_fails_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conftest, "REQUIRE_ALL", True)

    told = reported(skipped("Kafka is fetched with Maven; there is no mvn on PATH"))

    assert told.outcome == "failed"
    assert "allows no skip: Skipped: Kafka is fetched with Maven" in str(told.longrepr)


def test_where_tests_are_not_required_a_skip_stays_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "REQUIRE_ALL", False)

    assert reported(skipped("no mvn")).outcome == "skipped"


def reported(report: pytest.TestReport) -> pytest.TestReport:
    """Returns the report as the hook changes it."""
    hook = conftest.pytest_runtest_makereport()
    next(hook)
    with pytest.raises(StopIteration) as over:
        hook.send(report)
    told: pytest.TestReport = over.value.value
    return told


def skipped(reason: str) -> pytest.TestReport:
    where = ("tests/test_it.py", 1, f"Skipped: {reason}")
    return pytest.TestReport("tests/test_it.py::test", where, {}, "skipped", where, "setup")
