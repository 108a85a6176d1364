"""The services of one embedded installation: their commands, and when each counts as ready."""

import sys
from pathlib import Path

import httpx
import redis
from django.conf import settings
from django.urls import reverse

from ftdash.celery import application
from ftdash.embedded.installation import (
    FOR_PAGE_VIEWS,
    FOR_THE_QUEUE,
    LOOPBACK,
    RedisAddress,
    find_redis_server,
    own_redis,
    own_views_redis,
    write_configuration,
)
from ftdash.embedded.supervisor import Service
from ftdash.runs.queries import pipelines as queries
from pipelines.domain.errors import Rejected

READY_WITHIN_S = 60.0
ANSWER_TIMEOUT_S = 2.0
NO_LOG_SETTINGS = Path(__file__).with_name("uvicorn_log.json")
"""Keeps uvicorn from making handlers of its own: Django's settings say how a line looks."""
STREAM_END_S = 2  # open event streams are cut when the server ends


def broker() -> list[Service]:
    """Returns our own Redis, or nothing if the user named one.

    The other services need it to start and to end.
    """
    address = own_redis()
    return [] if address is None else [redis_service("redis", address, FOR_THE_QUEUE)]


def views_redis() -> list[Service]:
    """Returns our own durable Redis for page views, or nothing if the user named one."""
    address = own_views_redis()
    return [] if address is None else [redis_service("views-redis", address, FOR_PAGE_VIEWS)]


def redis_service(name: str, address: RedisAddress, purpose: tuple[str, ...]) -> Service:
    configuration = write_configuration(settings.FTDASH_HOME / name, address, purpose)
    return Service(
        name=name,
        command=(str(find_redis_server().executable), str(configuration)),
        is_ready=lambda: redis_answers(address.url),
        ready_within_s=READY_WITHIN_S,
        ends_last=True,
    )


def control_plane(web_port: int, web_host: str = LOOPBACK) -> list[Service]:
    return [projector(), worker(), beat(), web(web_port, web_host)]


def projector() -> Service:
    return Service(
        name="projector",
        command=manage("projector"),
        is_ready=lambda: queries.fleet().projector.is_alive,
        ready_within_s=READY_WITHIN_S,
    )


def worker() -> Service:
    return Service(
        name="worker",
        # Gossip and mingle are for fleets of workers.
        command=celery("worker", "--without-gossip", "--without-mingle"),
        is_ready=worker_answers,
        ready_within_s=READY_WITHIN_S,
    )


def beat() -> Service:
    return Service(
        name="beat",
        command=celery("beat"),
        is_ready=lambda: queries.fleet().reconcile.is_alive,
        ready_within_s=READY_WITHIN_S,
    )


def web(port: int, host: str = LOOPBACK) -> Service:
    """`host` is the address to listen on. Its log lines look like those of all our processes."""
    options = ("--host", host, "--port", str(port))
    logged = ("--log-level", "warning", "--log-config", str(NO_LOG_SETTINGS))
    believed = ("--no-proxy-headers",)  # `ftdash.asgi` believes those of FTDASH_TRUSTED_PROXIES
    graceful = ("--lifespan", "off", "--timeout-graceful-shutdown", str(STREAM_END_S))
    return Service(
        name="web",
        command=module(
            "uvicorn", "ftdash.asgi:application", *options, *logged, *believed, *graceful
        ),
        is_ready=lambda: web_answers(port),
        ready_within_s=READY_WITHIN_S,
    )


def web_address(port: int) -> str:
    return f"http://{LOOPBACK}:{port}/"


def module(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name, *arguments)


def manage(*arguments: str) -> tuple[str, ...]:
    return (*settings.MANAGE_COMMAND, *arguments)


def celery(*arguments: str) -> tuple[str, ...]:
    return module("celery", "-A", "ftdash.celery:application", *arguments, "--loglevel", "WARNING")


def check_broker() -> None:
    """Raises Rejected if the given Redis does not answer. The message omits its password."""
    if not redis_answers(settings.REDIS_URL):
        raise Rejected(
            "The Redis of FTDASH_REDIS_URL does not answer; start it, or unset FTDASH_REDIS_URL to"
            " use one of our own."
        )


def redis_answers(url: str) -> bool:
    client = redis.Redis.from_url(
        url, socket_timeout=ANSWER_TIMEOUT_S, socket_connect_timeout=ANSWER_TIMEOUT_S
    )
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
    finally:
        client.close()


def worker_answers() -> bool:
    return bool(application.control.ping(timeout=0.5))


def web_answers(port: int) -> bool:
    try:
        answer = httpx.get(web_address(port) + reverse("login")[1:], timeout=ANSWER_TIMEOUT_S)
    except httpx.HTTPError:
        return False
    return answer.is_success
