"""The image, built from the Containerfile, and its processes as the compose file starts them.

Needs root, and programs that `.ci/run` installs.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipelines.flows.flight_data import prepare
from tests.compose_host import ACCOUNT, ComposeHost, Images, wait

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

PROGRAMS = ("buildah", "podman", "runc", "catatonit", "mmdebstrap", "caddy", "ip")
DOMAIN = "ftdash.example"
SECRETS = {"database_password": "database/secret", "redis_password": "redis@secret"}
PASSWORD = "correct-horse-battery"
OURS = ("web1", "web2", "worker", "beat", "projector")
missing = [each for each in PROGRAMS if shutil.which(each) is None]
needs_programs = pytest.mark.skipif(
    os.geteuid() != 0 or bool(missing),
    reason=f"needs root, and what apt installs: {', '.join(missing or PROGRAMS)}",
)


@pytest.fixture(scope="module")
def images() -> Iterator[Images]:
    images = Images(Path(tempfile.mkdtemp()))  # pytest's path is too long for podman
    try:
        images.build()
        yield images
    finally:
        images.remove()


@pytest.fixture(scope="module")
def host(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeHost]:
    """Starts everything and waits until each health check of the file succeeds."""
    directory = tmp_path_factory.mktemp("compose")
    (directory / "secrets").mkdir()
    for name, text in SECRETS.items():
        (directory / "secrets" / name).write_text(f"{text}\n")
        os.chown(directory / "secrets" / name, ACCOUNT, ACCOUNT)
        (directory / "secrets" / name).chmod(0o400)
    variables = {"FTDASH_DOMAIN": DOMAIN, "FTDASH_SECRETS": str(directory / "secrets")}
    host = ComposeHost(images, directory, variables)
    try:
        host.wire()
        host.start_database()
        host.start_redis()
        host.run_to_end("prepare")
        for each in OURS:
            host.start(each)
        host.start_proxy()
        for each in OURS:
            wait(partial(host.is_healthy, each), partial(host.log, each))
        yield host
    finally:
        host.close()


@needs_programs
def test_the_image_has_no_compiler_and_its_processes_are_not_root(host: ComposeHost) -> None:
    found = "command -v cc gcc g++ make pip pip3 || true; id -u; touch /opt/x /etc/x 2>&1 || true"

    said = host.execute("web1", "sh", "-c", found).splitlines()

    assert said[0] == str(ACCOUNT)
    assert [line for line in said[1:] if "Read-only file system" in line] == said[1:]
    assert len(said) == 3


@needs_programs
def test_a_pipeline_is_submitted_killed_and_restored_without_one_web_server(
    host: ComposeHost,
) -> None:
    cookies, token = signed_in(host), bearer(host)
    submit(host, token)
    wait(lambda: newest(host, token) >= 2, lambda: f"no checkpoint: {host.log('worker')[-2000:]}")
    before = newest(host, token)
    lines_of_both(host)

    host.kill("worker")  # the driver dies with it
    host.kill("web1")
    for _ in range(6):  # enough requests to reach both servers
        assert host.get("/", cookies=cookies).status_code == 200
        assert static_file(host, cookies).status_code == 200
    assert event_stream(host, cookies) == "text/event-stream"

    host.start("worker")
    wait(
        lambda: newest(host, token) > before,
        lambda: f"it did not go on from its checkpoint: {host.log('worker')[-2000:]}",
    )
    host.start("web1")
    cancel(host, token)
    runs = {each["run_id"] for each in points(host, token)}
    restore(host, token)
    wait(
        lambda: {each["run_id"] for each in points(host, token)} > runs,
        lambda: "the restored run completed no checkpoint",
    )


def lines_of_both(host: ComposeHost) -> None:
    """Checks that each line is JSON and has the request id of its answer through the proxy."""
    answer = host.get("/healthz", headers={"X-Request-ID": "from-the-proxy-1"})
    lines = [json.loads(line) for each in ("web1", "web2") for line in host.log(each).splitlines()]

    assert answer.headers["X-Request-ID"] == "from-the-proxy-1"
    assert "from-the-proxy-1" in {each.get("request") for each in lines}
    assert {each["process"] for each in lines} == {"web"}


def signed_in(host: ComposeHost) -> dict[str, str]:
    """Returns the cookies of an admin, which both servers accept."""
    host.execute("web1", "env", f"DJANGO_SUPERUSER_PASSWORD={PASSWORD}", "ftdash",
                 "createsuperuser", "--no-input", "--username=ada", "--email=")  # fmt: skip
    cookies = dict(host.get("/login/").cookies)
    form = {"username": "ada", "password": PASSWORD}
    token = {"X-CSRFToken": cookies["__Host-csrftoken"]}
    answer = host.ask("POST", "/login/", data=form, headers=token, cookies=cookies)
    assert answer.status_code == 302, answer.text[:500]
    return cookies | dict(answer.cookies)


def bearer(host: ComposeHost) -> dict[str, str]:
    said = host.execute("web1", "ftdash", "api_token", "create", "smoke", "--scope", "act")
    [secret] = re.findall(r"ftd_\S+", said)
    return {"Authorization": f"Bearer {secret}"}


def submit(host: ComposeHost, token: dict[str, str]) -> None:
    home = host.volume("home")
    prepare(home / "flights")
    for each in (home / "flights", *(home / "flights").rglob("*")):
        shutil.chown(each, ACCOUNT, ACCOUNT)
    inside = Path("/var/lib/ftdash")
    parameters = {"data": inside / "flights", "output": inside / "out", "forever": "true"}
    parameters |= {"sql": f"sqlite:///{inside}/delays.db", "speed": "100"}
    asked = {
        "name": "flight_delays",
        "flow": "flight_delays",
        "parallelism": 1,
        "parameters": {key: str(value) for key, value in parameters.items()},
        "settings": {"execution.checkpointing.interval": "1s"},
    }
    wait_for_request(host, token, post(host, token, "/api/pipelines", asked))


def cancel(host: ComposeHost, token: dict[str, str]) -> None:
    wait_for_request(host, token, post(host, token, f"{PIPELINE}/cancel", {}))


def restore(host: ComposeHost, token: dict[str, str]) -> None:
    asked = {"path": points(host, token)[0]["path"], "reads_files": True}
    wait_for_request(host, token, post(host, token, f"{PIPELINE}/restore", asked))


PIPELINE = "/api/pipelines/flight_delays"


def post(host: ComposeHost, token: dict[str, str], path: str, asked: dict[str, Any]) -> str:
    answer = host.ask("POST", path, json={"reason": "smoke test", **asked}, headers=token)
    assert answer.status_code == 202, answer.text[:1000]
    request_id: str = answer.json()["request_id"]
    return request_id


def wait_for_request(host: ComposeHost, token: dict[str, str], request_id: str) -> None:
    def is_done() -> bool:
        said = host.get(f"/api/requests/{request_id}", headers=token).json()
        assert said["phase"] not in ("FAILED", "REJECTED"), said
        return bool(said["phase"] == "SUCCEEDED")

    wait(is_done, lambda: f"the request {request_id} was not carried out")


def points(host: ComposeHost, token: dict[str, str]) -> list[dict[str, Any]]:
    """Returns the recovery points, the newest first."""
    found: list[dict[str, Any]] = host.get(f"{PIPELINE}/recovery-points", headers=token).json()
    return found


def newest(host: ComposeHost, token: dict[str, str]) -> int:
    """Returns the id of the newest checkpoint that can be restored, or 0 if there is none yet."""
    return max((each["checkpoint_id"] for each in points(host, token)), default=0)


def static_file(host: ComposeHost, cookies: dict[str, str]) -> httpx.Response:
    page = host.get("/", cookies=cookies).text
    [style, *_] = re.findall(r'href="(/static/[^"]+\.css)"', page)
    return host.get(style)


def event_stream(host: ComposeHost, cookies: dict[str, str]) -> str:
    """Returns the content type of the stream that pages read, once it has begun."""
    with host.stream("/changes/", cookies=cookies) as answer:
        assert next(answer.iter_bytes())
        return answer.headers["Content-Type"].partition(";")[0]
