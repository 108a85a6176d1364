"""How the engine and the control plane communicate: journal, inbox, lease."""
