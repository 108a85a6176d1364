"""`manage.py api_token`."""
