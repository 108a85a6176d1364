"""Variables that tests plant in the environment of a control plane, and names that pass."""

from typing import Any

import pytest

WORD = "opensesame"
SECRETS = (
    *("FTDASH_SECRET_KEY", "FTDASH_DATABASE_URL", "FTDASH_DATABASE_PASSWORD"),
    *("FTDASH_REDIS_URL", "FTDASH_REDIS_PASSWORD", "FTDASH_OIDC_SECRET"),
    *("FTDASH_MAIL_PASSWORD", "FTDASH_SENTRY_DSN", "FTDASH_FLINK_HEADER"),
    *("FTDASH_SECRET_KEY_FILE", "FTDASH_DATABASE_URL_FILE", "FTDASH_DATABASE_PASSWORD_FILE"),
    *("FTDASH_REDIS_URL_FILE", "FTDASH_REDIS_PASSWORD_FILE", "FTDASH_OIDC_SECRET_FILE"),
    *("FTDASH_MAIL_PASSWORD_FILE", "FTDASH_SENTRY_DSN_FILE"),
    *("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"),
)
UNNAMED = ("COMPANY_KEY", "CREDENTIALS_DIRECTORY", "FTDASH_EMBEDDED_TOKEN", "FTDASH_MAIL_USER")
OWN = "PRICES_TOKEN"
"""The variable of an author, which `plant` allows."""

PASS = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
        *("LD_LIBRARY_PATH", "VIRTUAL_ENV", "JAVA_HOME", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"),
        *("KRB5CCNAME", "KRB5_CONFIG", "KUBECONFIG", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
        *("http_proxy", "https_proxy", "no_proxy", "FTDASH_PIPELINES", "FTDASH_STORAGE_ROOTS"),
        *("FTDASH_TASKMANAGER_HOST", "FTDASH_TLS_CERTIFICATE_FILE", "FTDASH_TLS_KEY_FILE"),
        *("FTDASH_TLS_CA_FILE", "FTDASH_VIEWS_REDIS_URL", "FTDASH_VIEWS_DATABASE_URL"),
        *("FTDASH_VIEWS_KAFKA", "FTDASH_VIEWS_KAFKA_SECURITY", "FTDASH_EMBEDDED_MARK"),
        # What the launcher adds.
        *("FTDASH_RUN_ID", "FTDASH_ALLOW_FAULTS", "FTDASH_DRIVER_WAITED_MS"),
    )
)
BEGIN = (
    *("LC_", "XDG_", "PYTHON", "SPARK_", "PYSPARK_", "HADOOP_", "YARN_", "KUBERNETES_", "AWS_"),
)


def plant(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """Puts the word into the environment of this process, and allows the author's variable."""
    for name in (*SECRETS, *UNNAMED):
        monkeypatch.setenv(name, WORD)
    monkeypatch.setenv(OWN, "an author's own")
    settings.PIPELINE_VARIABLES = frozenset({OWN})


def unexpected(names: "set[str] | frozenset[str]") -> set[str]:
    """Returns the names that may not pass."""
    return {name for name in names - PASS - {OWN} if not name.startswith(BEGIN)}
