"""The rows of pipelines, their runs, the requests of people, failures and recoveries."""
