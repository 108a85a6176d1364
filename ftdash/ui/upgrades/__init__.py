"""The page of one upgrade."""
