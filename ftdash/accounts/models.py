"""Rows of API tokens. `services` writes them, `authentication` notes when one was used."""

from django.db import models


class TokenScope(models.TextChoices):
    READ = "read", "see everything"
    ACT = "act", "see everything and act on pipelines"


class ApiToken(models.Model):
    """A token as it is remembered: never the secret, only its digest."""

    name = models.SlugField(max_length=80, unique=True)  # stays taken after it was revoked
    digest = models.CharField(max_length=64, unique=True)  # SHA-256 of the secret, hexadecimal
    scope = models.CharField(max_length=10, choices=TokenScope.choices)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField()
    last_used_at = models.DateTimeField(null=True)  # to the minute
    revoked_by = models.CharField(max_length=150, default="")
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name
