"""The rows of pipelines, their runs, people's requests, failures and recoveries."""
