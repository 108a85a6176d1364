"""The drill: stages incidents on real pipelines, and reads the pages as a person would."""
