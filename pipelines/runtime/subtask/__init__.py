"""A subtask: one thread that takes records and barriers, and cuts its state between them."""
