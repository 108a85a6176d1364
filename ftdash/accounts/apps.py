"""Registers accounts with Django, and listens for sign-ins."""

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "ftdash.accounts"

    def ready(self) -> None:
        from ftdash.accounts import authentication

        authentication.connect()
