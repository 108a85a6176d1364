"""Process functions and row functions: what an author writes, and what hosts it."""
