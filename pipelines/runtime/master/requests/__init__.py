"""What people ask of a running driver, and how each request is answered."""
