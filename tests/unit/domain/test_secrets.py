"""A text with a password is refused before it is stored or shown; the error names its field."""

import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.texts import check_no_secrets


@pytest.mark.parametrize(
    "value",
    [
        "redis://:hunter2@host:6379/0",
        "postgresql+psycopg://ann:hunter2@host/views?options=x",
        "rediss://ann:hunter2@host",
        "broker:9092;sasl.password=hunter2",
        "https://host/?user=ann&Password=hunter2",
        "host=db user=ann password = hunter2",
        "aws_secret_key=hunter2, ssl.key.password=hunter2",
    ],
)
def test_a_password_is_refused_without_repeating_it(value: str) -> None:
    with pytest.raises(Rejected, match=r"^The parameter 'to' holds a password, .*\.$") as refused:
        check_no_secrets("parameter", {"speed": "24", "to": value})

    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "value",
    [
        "redis://host:6379/0",
        "postgresql+psycopg://ann@host:5432/views",
        "s3://bucket/place:1/a@b",
        "broker-1:9092,broker-2:9092",
        "/data/secrets/passwords",
        "24",
        "",
    ],
)
def test_values_without_a_password_are_accepted(value: str) -> None:
    check_no_secrets("parameter", {"to": value})

    with pytest.raises(Rejected):
        check_no_secrets("parameter", {"to": value, "beside": "password=hunter2"})
