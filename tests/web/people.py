"""The two kinds of people who use the dashboard, signed in."""

from typing import Any

from django.contrib.auth.models import Permission, User
from django.test import Client


def admin_user(name: str = "ada") -> User:
    user = User.objects.create_user(name)
    user.user_permissions.add(Permission.objects.get(codename="operate"))
    return user


def operator_user(name: str = "olaf") -> User:
    return User.objects.create_user(name)


def signed_in(user: User, **options: Any) -> Client:
    client = Client(**options)
    client.force_login(user)
    return client
