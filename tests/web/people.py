"""The two kinds of users of the dashboard, signed in."""

from typing import Any

from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse


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


def came_in(name: str, password: str) -> Client:
    """Signs in through the page; `client.session` shows whether that succeeded."""
    client = Client()
    client.post(reverse("login"), {"username": name, "password": password})
    return client


def opens(name: str, password: str) -> bool:
    return "_auth_user_id" in came_in(name, password).session
