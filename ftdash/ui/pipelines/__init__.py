"""The page of one pipeline, and the list of all of them."""
