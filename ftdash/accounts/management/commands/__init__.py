"""`manage.py api_token` and `manage.py audit_log`."""
