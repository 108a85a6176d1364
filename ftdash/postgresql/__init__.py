"""Django's PostgreSQL backend with a bound on waiting for a server that has stopped."""
