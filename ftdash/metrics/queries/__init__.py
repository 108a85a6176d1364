"""The readers of the rows of samples."""
