"""Registers accounts with Django, and listens for sign-ins and second factors."""

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "ftdash.accounts"

    def ready(self) -> None:
        from ftdash.accounts import authentication, second_factor

        authentication.connect()
        second_factor.connect()
