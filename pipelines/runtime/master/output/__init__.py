"""The output of a run: who holds the targets, what was published, what earlier runs left."""
