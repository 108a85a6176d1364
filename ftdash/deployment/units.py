"""The files that let systemd run an installation: units, an account, and their environment.

The services and their commands are those of the embedded installation, so there is one list of
them. Files are written below a root, which is `/` on the server and a folder in a package or test.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.template.loader import render_to_string

from ftdash.embedded.stack import control_plane, manage
from pipelines.domain.errors import Rejected

UNITS = Path("usr/lib/systemd/system")
ACCOUNTS = Path("usr/lib/sysusers.d/ftdash.conf")
ENVIRONMENT = Path("etc/ftdash/environment")
SECRETS = Path("etc/ftdash/secrets")
"""A file here is a secret that systemd hands to the services as a credential."""

PRIVATE = 0o600  # it contains passwords
PUBLIC = 0o644

DESCRIPTIONS = {
    "web": "pages and interfaces",
    "worker": "starts drivers and carries out what people ask for",
    "beat": "sends the worker its rounds",
    "projector": "reads the journals of runs into the database",
}
STARTS_DRIVERS = "worker"
READERS = {"FTDASH_OIDC_SECRET": "web", "FTDASH_MAIL_PASSWORD": "worker"}
"""The secrets that a single service needs; every service needs the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The values that differ between servers."""

    account: str
    home: Path
    port: int


@dataclass(frozen=True, slots=True)
class UnitFile:
    path: Path  # below the root
    text: str
    mode: int = PUBLIC
    is_edited: bool = False  # by the administrator: it is never replaced


def unit_files(server: Server) -> list[UnitFile]:
    """Returns all files, complete; the same server always gives the same files."""
    said: dict[str, object] = {
        "account": server.account,
        "home": server.home,
        "environment": f"/{ENVIRONMENT}",
    }
    names = [service.name for service in control_plane(server.port)]
    services = [
        UnitFile(
            UNITS / f"ftdash-{name}.service",
            _rendered(
                "service",
                {
                    **said,
                    "credentials": credentials(name),
                    "description": f"{name}: {DESCRIPTIONS[name]}",
                    "command": _command(manage("serve", name, *_options(name, server))),
                    "starts_drivers": name == STARTS_DRIVERS,
                },
            ),
        )
        for name in names
    ]
    prepared = {
        **said,
        "credentials": credentials("prepare"),
        "command": _command(manage("prepare")),
    }
    return [
        *services,
        UnitFile(UNITS / "ftdash-prepare.service", _rendered("prepare", prepared)),
        UnitFile(UNITS / "ftdash.target", _rendered("target", {"names": names})),
        UnitFile(ACCOUNTS, _rendered("sysusers", said)),
        UnitFile(ENVIRONMENT, _rendered("environment", said), PRIVATE, is_edited=True),
    ]


def credentials(service: str) -> list[tuple[str, str]]:
    """Returns the secrets that a service needs: each name in systemd, and its file.

    `ftdash.settings` looks for the secrets under these names.
    """
    needed = [each for each in settings.SECRET_VARIABLES if READERS.get(each, service) == service]
    names = [each.lower().replace("_", "-") for each in needed]
    return [(each, f"/{SECRETS}/{each}") for each in names]


def _options(name: str, server: Server) -> tuple[str, ...]:
    return ("--port", str(server.port)) if name == "web" else ()


def install(server: Server, root: Path, replace: bool = False) -> list[UnitFile]:
    """Writes the files; returns those that were written.

    Raises:
        Rejected: a file is there with another text and `replace` is False; nothing is written.
    """
    files = unit_files(server)
    due = [each for each in files if not _is_there(each, root)]
    changed = [each for each in due if (root / each.path).exists()]
    if changed and not replace:
        names = ", ".join(str(root / each.path) for each in changed)
        raise Rejected(
            f"{names} differ from what would be written; move your changes into drop-in files"
            " (`systemctl edit`), and replace them with --replace."
        )
    for each in due:
        path = root / each.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(each.mode)
        path.chmod(each.mode)
        path.write_text(each.text)
    return due


def _is_there(file: UnitFile, root: Path) -> bool:
    path = root / file.path
    return path.is_file() and (file.is_edited or path.read_text() == file.text)


def _rendered(name: str, said: dict[str, object]) -> str:
    return str(render_to_string(f"deployment/{name}.txt", said))


def _command(words: tuple[str, ...]) -> str:
    """Formats a command for systemd: quotes words with blanks and doubles percent signs."""
    if any('"' in word or "\n" in word for word in words):
        raise Rejected(f"The path of {sys.executable} holds a quotation mark; install elsewhere.")
    return " ".join(f'"{w}"' if " " in w else w for w in words).replace("%", "%%")
