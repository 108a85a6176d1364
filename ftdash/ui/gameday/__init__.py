"""Game days: starting a fault on purpose, watching it, and its score."""
