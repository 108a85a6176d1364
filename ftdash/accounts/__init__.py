"""API tokens: who speaks to the dashboard without a browser, and what they may ask for."""
