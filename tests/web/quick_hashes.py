"""The settings of an installation that checks dozens of passwords: hashing costs nothing."""

from ftdash.settings import *  # noqa: F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
