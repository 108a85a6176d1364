"""The pipelines that ship with the project."""
