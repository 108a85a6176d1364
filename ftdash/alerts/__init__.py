"""Alerts: rules about pipelines, judged with hysteresis, and messages about them to people."""
