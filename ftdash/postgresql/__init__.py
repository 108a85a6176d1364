"""Django's PostgreSQL with a bound on how long a server that is stopped is waited for."""
