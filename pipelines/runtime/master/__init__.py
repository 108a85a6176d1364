"""The job master: what the driver of a run decides and tells its slots."""
