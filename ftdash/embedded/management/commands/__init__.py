"""Commands of the embedded installation."""
