"""Rows of API tokens, one-time passwords, saved views, forms that count once, cache, and the log.

`services` writes them all, except the cache; `authentication` notes when a token was used. People
themselves are Django's users.
"""

from django.conf import settings
from django.db import models


class TokenScope(models.TextChoices):
    READ = "read", "see everything"
    ACT = "act", "see everything and act on pipelines"
    CONFIGURE = "configure", "see everything, act on pipelines, change alerts and retention"
    LISTEN = "listen", "report the progress of Structured Streaming queries, and see nothing"


class ApiToken(models.Model):
    """A token as it is stored: never the secret, only its digest."""

    name = models.SlugField(max_length=80, unique=True)  # stays taken after a revocation
    digest = models.CharField(max_length=64, unique=True)  # SHA-256 of the secret, hexadecimal
    scope = models.CharField(max_length=10, choices=TokenScope.choices)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True)  # the token is invalid from then on; null: never
    last_used_at = models.DateTimeField(null=True)  # to the minute
    revoked_by = models.CharField(max_length=150, default="")
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class OneTimePassword(models.Model):
    """While it exists, its person has a password from an admin and must choose their own."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="one_time_password"
    )
    issued_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"one-time password of {self.user_id}"


class RequiredFactor(models.Model):
    """While it exists, everyone with a local account needs a second factor."""

    since = models.DateTimeField()

    def __str__(self) -> str:
        return f"a second factor is required since {self.since}"


class SavedView(models.Model):
    """Choices on the page of all pipelines, saved by a person under a name."""

    NAME_LENGTH_MAX = 60
    QUERY_LENGTH_MAX = 1_000

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="saved_views"
    )
    name = models.CharField(max_length=NAME_LENGTH_MAX)
    query = models.CharField(max_length=QUERY_LENGTH_MAX)  # as in the page's address
    is_default = models.BooleanField(default=False)  # the page begins with it

    class Meta:
        ordering = ("name",)
        constraints = (
            models.UniqueConstraint(fields=("user", "name"), name="saved_view_name"),
            models.UniqueConstraint(
                fields=("user",),
                condition=models.Q(is_default=True),
                name="one_default_view_per_person",
            ),
        )

    def __str__(self) -> str:
        return f"{self.name} of {self.user_id}"


class SentForm(models.Model):
    """A form that was carried out; kept for as long as it could be sent again."""

    mark = models.CharField(max_length=40, unique=True)
    at = models.DateTimeField()

    def __str__(self) -> str:
        return f"form sent at {self.at}"


class CacheEntry(models.Model):
    """A value that all web servers share (`shared_cache`)."""

    key = models.CharField(max_length=250, unique=True)  # the longest that Django allows
    value = models.JSONField()
    expires_at = models.DateTimeField(null=True, db_index=True)  # null: never

    def __str__(self) -> str:
        return self.key


SENT_REQUEST = "sent a request to"
REFUSED_REQUEST = "tried to send a request to"
NO_REQUEST = ~models.Q(what=SENT_REQUEST) & ~models.Q(what=REFUSED_REQUEST)
"""Entries about something other than a pipeline."""


class AdminAction(models.Model):
    """A change, a request to a pipeline, or the refusal of either: who, when, why.

    Rows are only ever added, each with the digest of the row before it (`audit_chain`). Database
    triggers refuse to update or delete them. On SQLite, a migration that recreates the table must
    also recreate the triggers.
    """

    SUBJECT_LENGTH_MAX = 200

    at = models.DateTimeField()
    who = models.CharField(max_length=150)
    what = models.CharField(max_length=80)  # "invited", "revoked", ...
    subject = models.CharField(max_length=SUBJECT_LENGTH_MAX)  # "person olaf", "token ci", ...
    detail = models.TextField(default="")  # of a request: its id, ":" and its command
    reason = models.TextField()
    refusal = models.TextField(default="")  # why it was refused; empty if it was done
    previous = models.CharField(max_length=64, default="")  # digest of the row before; "" if none
    digest = models.CharField(max_length=64, default="")  # of this row and `previous`

    class Meta:
        ordering = ("-pk",)
        indexes = (
            models.Index(fields=("at", "id"), condition=NO_REQUEST, name="setting_at"),
            models.Index(
                fields=("at", "id"),
                condition=models.Q(what=REFUSED_REQUEST),
                name="refused_request_at",
            ),
        )

    def __str__(self) -> str:
        return f"{self.who} {self.what} {self.subject}"
