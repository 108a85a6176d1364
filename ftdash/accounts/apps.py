"""Registers accounts with Django, and listens for sign-ins."""

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "ftdash.accounts"

    def ready(self) -> None:
        from ftdash.accounts import first_sign_in  # needs the models

        first_sign_in.connect()
