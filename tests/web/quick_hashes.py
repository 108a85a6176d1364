"""The settings of an installation whose passwords are tried by the dozen: a hash costs nothing."""

from ftdash.settings import *  # noqa: F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
