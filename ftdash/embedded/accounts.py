"""The first two people of an embedded installation: one may act, one may look.

Apart from `installation`, which processes without Django import too.
"""

import secrets
from dataclasses import dataclass

from django.contrib.auth.models import Permission, User

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
