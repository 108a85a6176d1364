"""Checks the names that Kafka and its client accept, before either of them sees one.

The client truncates a name at a NUL, which makes it another name, and ends the whole process if it
cannot read a group's name. A broker only says of a bad topic name that it is invalid. Source:
Kafka, `org.apache.kafka.common.internals.Topic`.
"""

import re

from pipelines.domain.errors import Rejected

TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
DIRECTORIES = (".", "..")
SHOWN = 50


def check_topic(name: str) -> None:
    """Raises Rejected."""
    if not TOPIC.fullmatch(name) or name in DIRECTORIES:
        raise Rejected(
            "A Kafka topic is named by up to 249 letters, digits and any of . _ -, and not by"
            f" {name[:SHOWN]!r}."
        )


def check_group(name: str) -> None:
    """Raises Rejected. A group may have any other name."""
    if not name:
        raise Rejected("The Kafka group for offsets needs a name; leave it out to commit none.")
    if "\0" in name or not _is_text(name):
        raise Rejected(f"A Kafka group is named by text without NUL, and not by {name[:SHOWN]!r}.")


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
