"""The manifests that the real `helm` renders from our chart, kept so that CI need not build `helm`.

Building it from its Go module takes four minutes of processor time, more than CI has. So the
rendered manifests are in `tests/web/chart/`. The heading of each file has a digest of the chart
that it was made from, and one of the manifests below it. A test compares the first digest with the
chart, and the second one with the file, and renders again if `helm` is on PATH. After a change to
the chart:

    go install helm.sh/helm/v3/cmd/helm@v3.19.2
    python -m tests.rendered_chart
"""

import hashlib
import re
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
VERSIONS = re.compile(r"^(version|appVersion): .*$", re.MULTILINE)


class Refused(Exception):
    """helm refused; the message is its output."""


def digest_of_chart() -> str:
    """Returns a digest of the chart and of the values that it is rendered with.

    Leaves out the versions of the chart, which change with each release and are in no manifest.
    """
    files = sorted(each for each in CHART.rglob("*") if each.is_file())
    files += [values_of(case) for case in CASES]
    texts = [f"{each.name}\0{VERSIONS.sub('', each.read_text())}" for each in files]
    return digest("\0".join(texts))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def values_of(case: str) -> Path:
    return KEPT / f"{case}.values.yaml"


def kept(case: str) -> str:
    return (KEPT / f"{case}.rendered.yaml").read_text()


def with_heading(rendered: str) -> str:
    return (
        f"# Made by `python -m tests.rendered_chart` from the chart {digest_of_chart()}\n"
        f"# Do not edit. Digest of the lines below: {digest(rendered)}\n{rendered}"
    )


def without_heading(text: str) -> str:
    return text.split("\n", 2)[2]


def manifests(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(text) if each]


def render(case: str, *options: str) -> str:
    """Returns the rendered manifests. Raises Refused."""
    where = ["--namespace", NAMESPACE, "--kube-version", KUBERNETES]
    words = ("template", RELEASE, str(CHART), *where, *_values(case), *options)
    return with_heading(_helm(*words))


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
