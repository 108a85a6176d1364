"""The guarantee lab as people of an installation use it: asked for, run beside it, kept."""
