"""The manifests that the real `helm` renders from our chart, kept so that CI need not build `helm`.

Building it from its Go module takes four minutes of processor time, more than CI has. So the
rendered manifests are in `tests/web/chart/`, with a digest of the chart that they were made from. A
test compares that digest with the chart, and renders again if `helm` is on PATH. After a change to
the chart:

    go install helm.sh/helm/v3/cmd/helm@v3.19.2
    python -m tests.rendered_chart
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
CHART = ROOT / "docs" / "how-to" / "helm" / "ftdash"
KEPT = ROOT / "tests" / "web" / "chart"
CASES = ("plain", "spark")
"""The names of the files with values, in `KEPT`."""

RELEASE, NAMESPACE, KUBERNETES = "ftdash", "streams", "1.34.0"


class Refused(Exception):
    """helm refused; the message is its output."""


def digest() -> str:
    """Returns a digest of the chart and of the values that it is rendered with."""
    files = sorted(each for each in CHART.rglob("*") if each.is_file())
    files += [values_of(case) for case in CASES]
    parts = [each.name.encode() + b"\0" + each.read_bytes() for each in files]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def values_of(case: str) -> Path:
    return KEPT / f"{case}.values.yaml"


def kept(case: str) -> str:
    return (KEPT / f"{case}.rendered.yaml").read_text()


def heading() -> str:
    return f"# Made by `python -m tests.rendered_chart` from the chart {digest()}\n"


def manifests(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(text) if each]


def render(case: str, *options: str) -> str:
    """Returns the rendered manifests. Raises Refused."""
    where = ["--namespace", NAMESPACE, "--kube-version", KUBERNETES]
    return heading() + _helm("template", RELEASE, str(CHART), *where, *_values(case), *options)


def lint(case: str) -> None:
    """Raises Refused if `helm lint` finds a problem."""
    _helm("lint", "--strict", str(CHART), *_values(case))


def has_helm() -> bool:
    return shutil.which("helm") is not None


def _values(case: str) -> tuple[str, str]:
    return ("--values", str(values_of(case)))


def _helm(*words: str) -> str:
    ran = subprocess.run(["helm", *words], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise Refused(ran.stdout + ran.stderr)
    return ran.stdout


def main() -> None:
    for case in CASES:
        lint(case)
        (KEPT / f"{case}.rendered.yaml").write_text(render(case))


if __name__ == "__main__":
    sys.exit(main())
