"""The settings page: people, tokens, alert rules, channels, and how long rows are kept."""
