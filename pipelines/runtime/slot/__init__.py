"""A slot: the process that hosts one subtask of every vertex."""
