"""The row by which processes of one installation notice that their secret keys differ."""

from django.db import models


class KeyMark(models.Model):
    """There is at most one. `ftdash prepare` writes it; the doctor and each start compare it."""

    digest = models.CharField(max_length=64)  # doctor.mark_of_key()
    noted_at = models.DateTimeField()

    class Meta:
        default_permissions = ()
