"""`python -m tests.bill_of_materials FILE`: lists the parts of an installation, as CycloneDX.

cyclonedx-bom reads the installed packages with their versions, licences and dependencies. It does
not check the file against the schema, which takes 20 s. Fails if the list misses a package in the
version that requirements.txt pins: it would then describe another installation than the tested one.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PINNED = re.compile(r"^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==(\S+)$", re.MULTILINE)


def main() -> None:
    file = Path(sys.argv[1])
    file.parent.mkdir(parents=True, exist_ok=True)
    write(file)
    if absent := missing(file.read_text(), (ROOT / "requirements.txt").read_text()):
        sys.exit(f"{file} lacks {', '.join(absent)}; install requirements.txt first.")
    print(f"{len(components(file.read_text()))} packages are in {file}.")


def write(file: Path) -> None:
    """Writes the bill of materials of this Python's environment."""
    options = ["--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "application"]
    command = [sys.executable, "-m", "cyclonedx_py", "environment", *options]
    output = ["--output-reproducible", "--no-validate", "--output-file", str(file)]
    subprocess.run([*command, *output], check=True)


def components(text: str) -> dict[str, str]:
    """Returns the version of each package."""
    listed = json.loads(text).get("components", [])
    return {canonicalize_name(each["name"]): each["version"] for each in listed}


def missing(text: str, requirements: str) -> list[str]:
    """Returns the pinned packages that a bill of materials lacks, or has in another version."""
    has = components(text)
    pinned = PINNED.findall(requirements)
    return [
        f"{name} {version}"
        for name, version in pinned
        if has.get(canonicalize_name(name)) != version
    ]


if __name__ == "__main__":
    main()
