"""Our own JSON interface, below `/api/`: for what the pages show and Flink's interface does not.

Answers are those of the queries, requests those of the services; `/api/openapi.json` describes
both. Callers and errors are the same as for Flink's routes: `{"errors": [...]}`.
"""
