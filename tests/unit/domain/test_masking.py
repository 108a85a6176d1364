"""Stored and shown texts hide every secret that this process has revealed, in every spelling."""

import pytest

from pipelines.domain import texts
from pipelines.domain.texts import is_secret_value, masked, remember_secret


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_revealed", set())


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        ("hunter2", "the server refuses hunter2 and hunter2again"),
        ("p@ss/word", "postgresql://ann:p%40ss%2Fword@host"),
        ("two words", "https://host/?key=two+words"),
        ("it's\t'so'", repr(KeyError("it's\t'so'"))),
        ("-----BEGIN-----\nMIIE\n-----END-----", "line 2 is MIIE"),
    ],
)
def test_a_revealed_secret_is_masked_in_every_spelling(secret: str, text: str) -> None:
    assert masked(text) == text

    assert remember_secret(secret)

    assert "***" in masked(text)
    for part in (secret, *secret.splitlines(), "p%40ss", "two+words", "it\\'s"):
        assert part not in masked(text)
    assert not remember_secret(secret)


def test_a_secret_that_contains_another_is_masked_whole() -> None:
    remember_secret("hunter")
    remember_secret("hunter2-and-more")

    assert masked("hunter2-and-more") == "***"


def test_a_text_too_short_to_be_a_secret_is_not_masked() -> None:
    remember_secret("a")
    remember_secret("")

    assert masked("a sentence") == "a sentence"


def test_a_masked_text_has_no_character_that_a_store_cannot_hold() -> None:
    assert masked("a\0b\udc80, \U0001f600") == "a\u2400b?, \U0001f600"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("password", "x", True),
        ("user_password", "x", True),
        ("ApiKey", "x", True),
        ("api_tokens", 7, True),
        ("url", "redis://:hunter2@host", True),
        ("note", "password=hunter2", True),
        ("secretary", "Ann", False),
        ("key", 7, False),
        ("token_count", 7, False),
    ],
)
def test_a_field_is_taken_for_a_secret_by_its_name_or_its_value(
    name: str, value: object, expected: bool
) -> None:
    assert is_secret_value(name, value) is expected
