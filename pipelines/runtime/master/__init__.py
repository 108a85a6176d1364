"""The job master: decides for a run, in its driver, and commands its slots."""
