"""The requests that people make to a running driver, and the answer to each."""
