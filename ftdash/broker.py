"""The transport to the broker: worker and beat live through the end of their Redis.

When Redis ends while a worker reads from it, Celery closes the connection twice. The second time,
kombu 5.7 looks for the address of a connection that has none any more. It raises AttributeError,
which Celery does not take for a lost connection, and the worker ends. `ftdash.celery` only names
this module, so that a process loads it when it first uses the broker.

Beat logs each task that it cannot send with a traceback and a stack, a hundred lines. Through a
night without Redis that would be millions, so it logs one line.
"""

import logging
from typing import Any

from kombu.exceptions import OperationalError
from kombu.transport import redis
from redis.exceptions import ConnectionError as ConnectionLost


class Channel(redis.Channel):
    """A channel that reports a closed connection as a lost one."""

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        """Returns the parameters of a new connection to Redis.

        Raises:
            ConnectionLost: the connection that this channel belongs to is closed.
        """
        if self.connection is None or self.connection.client is None:
            raise ConnectionLost("the connection to the broker is closed")
        parameters: dict[str, Any] = super()._connparams(asynchronous)  # type: ignore[misc]
        return parameters


class Transport(redis.Transport):
    """kombu's transport to Redis with these channels."""

    Channel = Channel


def _in_one_line(record: logging.LogRecord) -> bool:
    """Shortens the record to the sentence of its error if the broker does not answer."""
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and isinstance(error.__context__, OperationalError):
        record.msg, record.args, record.exc_info = "%s", (error,), None
    return True


logging.getLogger("celery.beat").addFilter(_in_one_line)
