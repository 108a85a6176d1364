"""The ways in: the sign-in page, the company's sign-in, the second factor, and sessions."""
