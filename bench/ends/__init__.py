"""Kafka, PostgreSQL and Redis: a run that is exactly once against a bare loop of the client."""
