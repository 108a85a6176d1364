"""The command palette: every pipeline, checkpoint, page and action by its name."""
