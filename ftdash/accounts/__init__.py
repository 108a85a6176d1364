"""People, API tokens and the audit log: who may use the dashboard, and for what."""
