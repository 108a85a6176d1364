"""Where snapshots live, and what makes a checkpoint complete."""
