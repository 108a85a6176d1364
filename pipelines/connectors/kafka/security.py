"""Translates the security settings of a `KafkaAddress` from librdkafka to kafka-python.

No text contains a value of them: they hold passwords.
"""

from collections.abc import Mapping
from typing import Any

from pipelines.connectors.kafka.connection import ANSWER_TIMEOUT_S, KafkaAddress
from pipelines.domain.errors import Rejected
from pipelines.domain.patience import patience_s

NAMES = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.crl.location": "ssl_crlfile",
}
VERIFIES_HOST = "ssl.endpoint.identification.algorithm"


def python_settings(address: KafkaAddress) -> dict[str, Any]:
    """Raises Rejected naming a setting that has no counterpart."""
    timeout_ms = int(patience_s(ANSWER_TIMEOUT_S) * 1000)
    return {
        "bootstrap_servers": address.bootstrap_servers.split(","),
        "bootstrap_timeout_ms": timeout_ms,
        "request_timeout_ms": timeout_ms,
        **_security(address.security),
    }


def _security(security: Mapping[str, str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name, value in security.items():
        if name == VERIFIES_HOST:
            settings["ssl_check_hostname"] = value != "none"
        elif name == "security.protocol":
            settings[NAMES[name]] = value.upper()
        elif name in NAMES:
            settings[NAMES[name]] = value
        else:
            raise Rejected(
                f"The security setting {name} is not known to Kafka sinks; they take"
                f" {', '.join([*NAMES, VERIFIES_HOST])}."
            )
    return settings
