"""Sends one message by mail, with Django's mail; the server is in the settings (FTDASH_MAIL_*)."""

from django.conf import settings
from django.core.mail import EmailMessage
from django.core.validators import validate_email
from django.forms import ValidationError

from ftdash.alerts.message import Message
from ftdash.alerts.models import Channel
from pipelines.domain.errors import Rejected

ADDRESSES_MAX = 20


def addresses(text: str) -> list[str]:
    """The addresses in a list separated by commas. Raises Rejected naming one that is invalid."""
    found = [each.strip() for each in text.split(",") if each.strip()]
    if not 1 <= len(found) <= ADDRESSES_MAX:
        raise Rejected(f"Give 1 to {ADDRESSES_MAX} mail addresses, separated by commas.")
    for each in found:
        try:
            validate_email(each)
        except ValidationError as error:
            raise Rejected(f"{each!r} is no mail address.") from error
    return found


def check_can_send() -> None:
    """Raises Rejected if no mail server is configured."""
    if not settings.MAIL_IS_SET:
        raise Rejected("No mail server is known; set FTDASH_MAIL_HOST (docs/how-to/alerts.md).")


def send(channel: Channel, message: Message) -> None:
    """Raises OSError (as smtplib's errors are) or Rejected if the server did not accept it."""
    check_can_send()
    mail = EmailMessage(message.subject, message.text, None, addresses(channel.address))
    mail.extra_headers["X-Ftdash-Delivery"] = str(message.id)
    mail.send()
