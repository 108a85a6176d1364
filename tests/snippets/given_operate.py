"""The doctor of the operations guide has examined every part, after `ftdash prepare`."""

import json
from pathlib import Path

PREPARED = {"home", "secret key", "database", "migrations", "key in use", "static files"}
OUTSIDE = {"Redis", "projector", "people", "Java"}
"""Parts that may be broken where tests run."""


def check_files(place: Path) -> None:
    text = (place / "doctor.json").read_text()
    verdicts = {each["part"]: each["verdict"] for each in json.loads(text)}

    assert verdicts.keys() >= PREPARED | OUTSIDE
    assert {verdicts[part] for part in PREPARED} == {"well"}
