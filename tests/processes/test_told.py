"""A search that finds no secret proves something only if it would find one."""

from base64 import b64encode
from pathlib import Path

import pytest

from tests.processes.told import files_in, holding


@pytest.mark.parametrize("before", [b"", b"u", b"u:", b"in the middle "])
def test_a_word_is_found_in_plain_text_and_in_base64(tmp_path: Path, before: bytes) -> None:
    (tmp_path / "plain").write_bytes(before + b"open-sesame\n")
    (tmp_path / "encoded").write_bytes(b"x" + b64encode(before + b"open-sesame@host"))
    (tmp_path / "other").write_bytes(b64encode(before + b"open") + b"-ses-ame")

    found = holding(files_in(tmp_path), "open-sesame")

    assert {Path(each).name for each in found} == {"plain", "encoded"}
