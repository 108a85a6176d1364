"""Django's PostgreSQL backend, except that it does not wait for a server that has stopped.

libpq gives up on a machine that is gone. But if the processes of a server stand still while its
kernel continues to acknowledge, libpq waits for ever, and the server's own limits do not apply. So
after some silence this backend opens one more connection, which libpq bounds. A slow server accepts
it, and the backend keeps waiting; a stopped one does not, and the backend gives up.
"""

import time
from collections.abc import Callable, Generator
from typing import Any

import psycopg
from django.db.backends.postgresql import base

from pipelines.domain.clock import POSTGRESQL_SILENCE, patience_s

SILENT_FOR_S = POSTGRESQL_SILENCE["tcp_user_timeout"] / 1000

Steps = Generator[Any, Any, Any]
"""The steps of a query: yields what it waits for, receives what is ready; false means nothing."""


class DatabaseWrapper(base.DatabaseWrapper):
    """The name that Django looks for."""

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        connection = super().get_new_connection(conn_params)
        wait: Callable[..., Any] = connection.wait

        def wait_for_the_living(steps: Steps, *given: Any, **named: Any) -> Any:
            return wait(_watched(steps, connection, conn_params), *given, **named)

        connection.wait = wait_for_the_living
        return connection


def _watched(
    steps: Steps, connection: "psycopg.Connection[Any]", conn_params: dict[str, Any]
) -> Steps:
    """Raises OperationalError with the connection closed; the query's outcome is then unknown."""
    heard_s = time.monotonic()
    try:
        awaited = next(steps)
        while True:
            ready = yield awaited
            if ready:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s >= patience_s(SILENT_FOR_S):
                _check_lets_others_in(connection, conn_params)
                heard_s = time.monotonic()
            awaited = steps.send(ready)
    except StopIteration as end:
        return end.value


def _check_lets_others_in(
    connection: "psycopg.Connection[Any]", conn_params: dict[str, Any]
) -> None:
    try:
        psycopg.connect(**conn_params).close()
    except psycopg.errors.ConnectionTimeout as error:
        connection.pgconn.finish()
        raise psycopg.OperationalError(
            "PostgreSQL accepts the connection but answers nothing and lets no client sign in."
        ) from error
    except psycopg.OperationalError:
        return  # a refusal is an answer too: there are too many connections already
