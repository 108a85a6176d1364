"""A slot: the process that hosts at most one subtask of each vertex."""
