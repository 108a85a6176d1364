"""Names the environment variables with the servers that the flow `page_views` reads and writes.

An installation asks for them at its start, so this module loads no client of these servers.
"""

import os

REDIS = "FTDASH_VIEWS_REDIS_URL"
DATABASE = "FTDASH_VIEWS_DATABASE_URL"
KAFKA = "FTDASH_VIEWS_KAFKA"
KAFKA_SECURITY = "FTDASH_VIEWS_KAFKA_SECURITY"


def is_configured(variable: str) -> bool:
    return bool(os.environ.get(variable))
