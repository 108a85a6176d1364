"""Registers the dashboard with Django."""

from django.apps import AppConfig


class UiConfig(AppConfig):
    name = "ftdash.ui"
    label = "ui"
