"""How long what happened is kept, and the deletion of what is older."""
