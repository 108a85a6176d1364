"""Commands for the person who runs the server."""
