"""The home of one embedded installation, and the environment that all its processes share.

Settings are read once, when Django loads. So a command that chooses a home restarts itself in the
environment of that home: `reenter` never returns.

The first two people of an embedded installation: one who may act, and one who may look.
"""

import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from django.contrib.auth.models import Permission, User

from ftdash.embedded.ledger import TOKEN_VARIABLE, new_token
from ftdash.embedded.redis_server import EMBEDDED_REDIS_VARIABLE, RedisAddress, new_address
from pipelines.flows.page_view_logs import REDIS as VIEWS_REDIS_VARIABLE

REDIS_URL_VARIABLE = "FTDASH_REDIS_URL"
HOME_VARIABLE = "FTDASH_HOME"
# Set if we start the Redis server of the page views ourselves.
EMBEDDED_VIEWS_VARIABLE = "FTDASH_EMBEDDED_VIEWS_REDIS"
# A token of this process, not one inherited from an installation that started it.
ENTERED_VARIABLE = "FTDASH_EMBEDDED_OWNER"
OWN_SERVERS = {  # the variable with an address, and the one that marks the server as ours
    REDIS_URL_VARIABLE: EMBEDDED_REDIS_VARIABLE,
    VIEWS_REDIS_VARIABLE: EMBEDDED_VIEWS_VARIABLE,
}


def is_entered() -> bool:
    return os.environ.get(ENTERED_VARIABLE) == str(os.getpid())


def reenter(home: Path) -> None:
    """Replace this process by the same command in the environment of `home`."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(
        sys.executable, [sys.executable, *sys.argv], environment_of(home, os.getpid(), os.environ)
    )


def environment_of(home: Path, owner_pid: int, outside: Mapping[str, str]) -> dict[str, str]:
    """`outside`, plus the variables that all processes of one installation share."""
    entered = {
        HOME_VARIABLE: str(home.absolute()),
        TOKEN_VARIABLE: new_token(),
        ENTERED_VARIABLE: str(owner_pid),
        "DJANGO_SETTINGS_MODULE": "ftdash.settings",
    }
    for address, is_ours in OWN_SERVERS.items():
        if address not in outside or is_ours in outside:
            entered |= {address: new_address().url, is_ours: "1"}
    return {**outside, **entered}


def own_token() -> str:
    return os.environ[TOKEN_VARIABLE]


def own_redis() -> RedisAddress | None:
    """The address on which our own Redis listens; None if the user named a server."""
    return _own(REDIS_URL_VARIABLE)


def own_views_redis() -> RedisAddress | None:
    """The same for the Redis of page views and their counts."""
    return _own(VIEWS_REDIS_VARIABLE)


def _own(variable: str) -> RedisAddress | None:
    if OWN_SERVERS[variable] not in os.environ:
        return None
    address = urlsplit(os.environ[variable])
    return RedisAddress(int(address.port or 0), str(address.password))


PASSWORD_BYTES = 12


@dataclass(frozen=True, slots=True)
class Account:
    name: str
    password: str | None  # None: unchanged; only its digest is stored


def provide_accounts(*, new_passwords: bool) -> list[Account]:
    """`admin` may act, `operator` may look. Passwords are random; only the caller learns them."""
    admin = provide("admin", new_password=new_passwords)
    acting = Permission.objects.get(content_type__app_label="jobs", codename="operate")
    User.objects.get(username=admin.name).user_permissions.add(acting)
    return [admin, provide("operator", new_password=new_passwords)]


def provide(name: str, *, new_password: bool) -> Account:
    user, is_new = User.objects.get_or_create(username=name)
    if not is_new and not new_password:
        return Account(name, None)
    password = secrets.token_urlsafe(PASSWORD_BYTES)
    user.set_password(password)
    user.save()
    return Account(name, password)
