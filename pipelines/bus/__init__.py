"""How the engine and the control plane talk to each other: journal, inbox, lease."""
