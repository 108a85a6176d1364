"""The page of alerts: those that fire now, silences, and those that have fired."""
