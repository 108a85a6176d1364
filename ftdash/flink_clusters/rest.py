"""Talks to one cluster: one request after the other, with a limit on the time and size of each.

It follows no redirect and ignores proxies of the environment, so that the token of a cluster goes
to its address alone. A refusal quotes Flink's own message, never a header.
"""

import ssl
import time
from collections.abc import Callable, Mapping
from functools import cache
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
import msgspec

from ftdash.flink_clusters.bodies import DashboardConfig, decoded, first_error
from pipelines.domain.errors import Rejected, Retryable

Answer = TypeVar("Answer")
TIMEOUT_S = 5.0
ANSWER_S_MAX = 10.0
"""The limit for a whole answer, however slowly its parts come."""

ANSWER_BYTES_MAX = 16 << 20
ADDRESS_LENGTH_MAX = 500


@cache
def _trusted() -> ssl.SSLContext:
    """Reading the certificate authorities takes longer than a look."""
    return httpx.create_ssl_context(trust_env=False)


_UNDECIDED = (408, 502, 503, 504)
"""Answers of a proxy, or of a JobManager that is starting: the request may have had an effect."""


class Silent(Retryable):
    """The cluster did not answer. `was_sent` means that it may have read the request."""

    def __init__(self, text: str, *, was_sent: bool) -> None:
        super().__init__(text)
        self.was_sent = was_sent


class Unknown(Rejected):
    """Flink answered that it does not know what was asked for (404)."""


class Refused(Rejected):
    """Flink, or something in front of it, refused the request (other 4xx and 5xx)."""


def checked_address(text: str) -> str:
    """Returns the address without a final slash. Raises Rejected if no cluster can be there."""
    written = text.strip().rstrip("/")
    try:
        url = httpx.URL(written)
    except httpx.InvalidURL as error:
        raise Rejected(f"{text!r} is no address: {error}.") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise Rejected(
            "The address of a cluster begins with http:// or https:// and names a machine, as"
            " http://jobmanager:8081 does."
        )
    if url.userinfo:
        raise Rejected("The address holds a user or password; give a token as a header instead.")
    if url.query or url.fragment or len(written) > ADDRESS_LENGTH_MAX:
        raise Rejected(
            f"The address has at most {ADDRESS_LENGTH_MAX} letters and ends with its path: leave"
            " out what follows '?' or '#'."
        )
    return written


class FlinkRest:
    """A connection to one cluster, to be used as a context manager by one thread.

    `before_each` is called before each request, and may raise an error to end the conversation.
    """

    def __init__(
        self, address: str, headers: Mapping[str, str], before_each: Callable[[], None]
    ) -> None:
        self._address = address
        self._before_each = before_each
        self._client = httpx.Client(
            headers={"User-Agent": "ftdash", **headers},
            timeout=TIMEOUT_S,
            trust_env=False,
            verify=_trusted(),
            follow_redirects=False,
            limits=httpx.Limits(max_connections=1),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    def get(self, path: str, type_: type[Answer]) -> Answer:
        """Raises Silent, Unknown, or another Rejected that says what came instead."""
        return decoded(self._ask("GET", path, None), type_, path)

    def post(self, path: str, body: Mapping[str, Any]) -> None:
        """Raises the same as `get`. The content of the answer is not needed."""
        self._ask("POST", path, body)

    def cancel(self, jid: str) -> None:
        """Raises the same as `get`."""
        self._ask("PATCH", f"/jobs/{jid}?mode=cancel", {})

    def flink_version(self) -> str:
        """Raises Silent if nothing answers, or Rejected if the answer is not from a Flink."""
        try:
            return self.get("/config", DashboardConfig).flink_version
        except Refused:
            raise
        except Rejected as error:
            raise Rejected(
                f"{self._address} is no Flink: its answer to /config is not that of a"
                " JobManager. Give the address of its web page, which is often port 8081."
            ) from error

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if content is None else {"Content-Type": "application/json"}
        url = f"{self._address}{path}"
        self._before_each()
        try:
            with self._client.stream(method, url, content=content, headers=headers) as answer:
                found = self._read(answer)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol) as error:
            raise Silent(self._silent(error), was_sent=False) from error
        except httpx.HTTPError as error:
            raise Silent(self._silent(error), was_sent=True) from error
        if answer.is_success:
            return found
        said = first_error(found)
        if answer.status_code in _UNDECIDED or "TimeoutException" in said:
            why = f"{answer.status_code} {said}".strip()
            raise Silent(f"{self._address} has no answer yet: {why}.", was_sent=True)
        raise self._refusal(answer.status_code, path, said)

    def _read(self, answer: httpx.Response) -> bytes:
        parts: list[bytes] = []
        size = 0
        ends_s = time.monotonic() + ANSWER_S_MAX
        for part in answer.iter_bytes():
            size += len(part)
            if time.monotonic() > ends_s:
                raise httpx.ReadTimeout(f"its answer took more than {ANSWER_S_MAX:g} s")
            if size > ANSWER_BYTES_MAX:
                raise Rejected(f"{self._address} sent more than 16 MiB in one answer.")
            parts.append(part)
        return b"".join(parts)

    def _silent(self, error: httpx.HTTPError) -> str:
        why = str(error) or type(error).__name__
        return (
            f"{self._address} does not answer ({why}). See that the JobManager runs, and that this"
            " server may reach it."
        )

    def _refusal(self, status: int, path: str, said: str) -> Rejected:
        if status == 404 and said:
            return Unknown(said)
        if status in (401, 403):
            return Refused(
                f"{self._address} refuses access ({status}); give the header with a token that it"
                " accepts."
            )
        if not said:
            return Rejected(f"{self._address} answered {status} to {path}, without Flink's words.")
        return Refused(f"Flink refused it ({status}): {said}")
