"""The audit of dependencies: a source that knows nothing never counts as a clean result."""

from tests.dependency_audit import (
    KNOWN_TO_BE_VULNERABLE,
    Answer,
    Ask,
    Outcome,
    audit,
    installed,
)

PACKAGES = ["attrs==26.1.0", "flask==4.0"]
OLD = {"name": "django", "version": "2.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.0.2"]}]}


def test_packages_without_a_known_vulnerability_are_clean() -> None:
    told = audit(source(clean("attrs"), clean("flask")), PACKAGES)

    assert told == (Outcome.CLEAN, "2 of 2 packages audited (pypi), no known vulnerability.")


def test_a_vulnerability_is_named_with_the_versions_that_fix_it() -> None:
    found = [{"id": "PYSEC-7", "fix_versions": ["4.1", "5.0"]}]
    bad = {"name": "flask", "version": "4.0", "vulns": found}

    told = audit(source(clean("attrs"), bad), PACKAGES)

    assert told == (Outcome.VULNERABLE, "flask 4.0: PYSEC-7, mended in 4.1, 5.0")


def test_packages_are_not_audited_if_no_source_can_be_asked() -> None:
    outcome, told = audit(lambda *_: [], PACKAGES)

    assert outcome is Outcome.NOT_AUDITED
    assert "neither pypi nor osv could be asked" in told


def test_a_mirror_that_knows_no_vulnerabilities_is_not_believed() -> None:
    def ask(_: str, packages: list[str]) -> list[Answer]:
        return [clean(each.partition("==")[0]) for each in packages]

    assert audit(ask, PACKAGES)[0] is Outcome.NOT_AUDITED


def test_a_mirror_that_skips_every_package_is_not_believed() -> None:
    def ask(_: str, packages: list[str]) -> list[Answer]:
        return [skipped(each.partition("==")[0]) for each in packages]

    assert audit(ask, PACKAGES)[0] is Outcome.NOT_AUDITED


def test_a_package_that_was_not_audited_is_named() -> None:
    outcome, told = audit(source(clean("attrs"), skipped("flask")), PACKAGES)

    assert outcome is Outcome.NOT_AUDITED
    assert told.startswith("1 of 2 packages audited (pypi)")
    assert told.endswith("NOT AUDITED: flask.")


def test_the_audit_asks_the_second_source_if_the_first_does_not_answer() -> None:
    answers = source(clean("attrs"), clean("flask"))

    told = audit(lambda name, asked: answers(name, asked) if name == "osv" else [], PACKAGES)

    assert told == (Outcome.CLEAN, "2 of 2 packages audited (osv), no known vulnerability.")


def test_transitive_dependencies_are_audited_too() -> None:
    names = {each.partition("==")[0] for each in installed()}

    assert {"django", "sqlparse"} <= names  # only django requires sqlparse
    assert not names & {"pip", "setuptools"}


def source(*answers: Answer) -> Ask:
    """Returns a source of advisories that knows the vulnerability of the old version."""
    return lambda _, packages: [OLD] if packages == [KNOWN_TO_BE_VULNERABLE] else list(answers)


def clean(name: str) -> Answer:
    return {"name": name, "version": "1", "vulns": []}


def skipped(name: str) -> Answer:
    return {"name": name, "skip_reason": "Dependency not found on PyPI and could not be audited"}
