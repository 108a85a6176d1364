"""How long it takes to go on after a failure, and what memory a restore needs."""
