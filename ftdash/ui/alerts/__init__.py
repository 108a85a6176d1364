"""The page of alerts: what fires now, and what has fired."""
