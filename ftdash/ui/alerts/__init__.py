"""The page of alerts: those that fire now, and those that have fired."""
