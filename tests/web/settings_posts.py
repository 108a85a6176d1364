"""Changes of settings, sent as a browser sends them: with the form's hidden fields."""

import re

from django.http import HttpResponse
from django.test import Client
from django.urls import reverse


def settings_address(action: str, of: str = "") -> str:
    return reverse("settings-action", args=[action]) + f"?of={of}"


def post(client: Client, action: str, given: dict[str, str], of: str = "") -> HttpResponse:
    """Opens the form and sends it."""
    form = client.get(settings_address(action, of)).content.decode()
    return client.post(settings_address(action, of), hidden(form) | given)


def hidden(form: str) -> dict[str, str]:
    return dict(re.findall(r'<input type="hidden" name="(mark)" value="([^"]+)">', form))
