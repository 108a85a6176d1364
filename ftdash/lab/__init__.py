"""The guarantee lab as people of an installation use it."""
