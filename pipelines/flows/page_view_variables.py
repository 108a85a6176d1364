"""The environment variables that name the servers of the flow `page_views`."""

import os

REDIS = "FTDASH_VIEWS_REDIS_URL"
DATABASE = "FTDASH_VIEWS_DATABASE_URL"
KAFKA = "FTDASH_VIEWS_KAFKA"
KAFKA_SECURITY = "FTDASH_VIEWS_KAFKA_SECURITY"


def is_configured(variable: str) -> bool:
    return bool(os.environ.get(variable))
