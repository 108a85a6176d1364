"""API tokens: which programs may use the dashboard without a browser, and for what."""
