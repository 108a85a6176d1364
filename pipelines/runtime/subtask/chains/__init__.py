"""The chain of one subtask: its nodes, how they open, and how batches move between them."""
