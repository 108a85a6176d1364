"""Alerts: rules over what is known of pipelines, judged with hysteresis, told to people."""
