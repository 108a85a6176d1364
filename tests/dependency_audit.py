"""Looks for known vulnerabilities in the installed packages, with pip-audit.

    python -m tests.dependency_audit

pip-audit succeeds if its source knows none of the packages, which can happen with a mirror of PyPI.
So a source is believed only if it reports an old version that is known to be vulnerable. The exit
code is 1 for a vulnerability, and 3 if not every package could be audited, which is no finding.
"""

import importlib.metadata
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from enum import IntEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SOURCES = ("pypi", "osv")
KNOWN_TO_BE_VULNERABLE = "django==2.0"
OF_THE_ENVIRONMENT = {"pip", "setuptools"}
"""Python brings them, and none of our code loads them."""

PATIENCE_S = 90
"""The wait for a source, which may never answer."""

Answer = dict[str, Any]  # one package: `name`, and either `version` and `vulns` or `skip_reason`
Ask = Callable[[str, list[str]], list[Answer]]


class Outcome(IntEnum):
    """The exit codes of the command."""

    CLEAN = 0
    VULNERABLE = 1
    NOT_AUDITED = 3


def main() -> None:
    if find_spec("pip_audit") is None:
        print("NOT AUDITED: pip-audit is not installed; requirements.txt names it.")
        sys.exit(Outcome.NOT_AUDITED)
    outcome, told = audit(asked_of_pip_audit, installed())
    print(told)
    sys.exit(outcome)


def audit(ask: Ask, packages: list[str]) -> tuple[Outcome, str]:
    """Asks the first source that can be believed; returns the outcome and the findings in words."""
    for source in SOURCES:
        if not any(each.get("vulns") for each in ask(source, [KNOWN_TO_BE_VULNERABLE])):
            continue
        return judged(source, ask(source, packages), len(packages))
    return (
        Outcome.NOT_AUDITED,
        f"NOT AUDITED: neither {' nor '.join(SOURCES)} could be asked; what can be asked knows that"
        f" {KNOWN_TO_BE_VULNERABLE} is vulnerable.",
    )


def judged(source: str, answers: list[Answer], count: int) -> tuple[Outcome, str]:
    vulnerable = [line for each in answers for line in findings(each)]
    if vulnerable:
        return Outcome.VULNERABLE, "\n".join(vulnerable)
    audited = sum("vulns" in each for each in answers)
    told = f"{audited} of {count} packages audited ({source}), no known vulnerability."
    if audited == count:
        return Outcome.CLEAN, told
    unknown = [each["name"] for each in answers if "vulns" not in each]
    return Outcome.NOT_AUDITED, f"{told} NOT AUDITED: {', '.join(unknown)}."


def findings(answer: Answer) -> list[str]:
    return [
        f"{answer['name']} {answer['version']}: {each['id']}, mended in"
        f" {', '.join(each['fix_versions']) or 'no version yet'}"
        for each in answer.get("vulns", [])
    ]


def installed() -> list[str]:
    """Returns `name==version` of every installed package, with its dependencies."""
    found = {each.name.lower(): each.version for each in importlib.metadata.distributions()}
    return [f"{name}=={found[name]}" for name in sorted(found.keys() - OF_THE_ENVIRONMENT)]


def asked_of_pip_audit(source: str, packages: list[str]) -> list[Answer]:
    """Returns pip-audit's answers, or an empty list if it could not ask the source."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(packages))
        file.flush()
        words = ["-r", file.name, "--no-deps", "--disable-pip", "--vulnerability-service", source]
        shown = ["--format", "json", "--progress-spinner", "off"]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pip_audit", *words, *shown],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=PATIENCE_S,
                cwd=Path(file.name).parent,
            )
            answers: list[Answer] = json.loads(done.stdout)["dependencies"]
        except (subprocess.TimeoutExpired, ValueError):
            return []
    return answers


if __name__ == "__main__":
    main()
