"""`ftdash dev`: a pipeline that starts again when its code changes, and a page that shows it."""
