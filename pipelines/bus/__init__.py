"""What the engine and the control plane say to each other: journal, inbox, lease."""
