"""Kafka, PostgreSQL and Redis: an exactly-once run against a bare loop of the client."""
