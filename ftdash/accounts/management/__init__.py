"""Commands about people and tokens."""
