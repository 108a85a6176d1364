"""Where snapshots are stored, and what makes a checkpoint complete."""
