"""The bill of materials: made from the installed packages, and refused if it differs."""

import json
from pathlib import Path

from tests.bill_of_materials import ROOT, components, missing, write


def test_the_bill_names_every_pinned_package_with_its_version(tmp_path: Path) -> None:
    write(tmp_path / "sbom.json")

    text = (tmp_path / "sbom.json").read_text()

    assert json.loads(text)["bomFormat"] == "CycloneDX"
    assert json.loads(text)["metadata"]["component"]["name"] == "ftdash"
    assert len(components(text)) > 100
    assert missing(text, (ROOT / "requirements.txt").read_text()) == []


def test_a_missing_package_or_one_of_another_version_is_named() -> None:
    bill = json.dumps({"components": [{"name": "Django", "version": "5.2"}]})

    assert missing(bill, "django==5.2\n") == []
    assert missing(bill, "django==5.3\nredis[hiredis]==8.1.0\n# comment\n") == [
        "django 5.3",
        "redis 8.1.0",
    ]
