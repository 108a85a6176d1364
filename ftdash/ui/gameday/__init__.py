"""Game days: starts a fault on purpose, and shows its progress and the score."""
