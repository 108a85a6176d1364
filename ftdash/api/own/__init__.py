"""Our own JSON interface, below `/api/`: what the pages know and Flink's has no word for.

Answers are what the queries answer with, requests what the services take; `/api/openapi.json`
describes both. The same callers and the same errors as at Flink's routes: `{"errors": [...]}`.
"""
