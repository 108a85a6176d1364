"""The installation's settings for a site whose processes a busy machine may delay."""

from ftdash.settings import *  # noqa: F403

SILENT_AFTER_S = 60.0
