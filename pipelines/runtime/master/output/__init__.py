"""The output of a run: whose the targets are, what was published, what earlier runs left."""
