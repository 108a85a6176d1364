"""Flink's REST interface over our rows: routes and shapes of Flink 2.3, exact to the field.

Its own command line and web page work against it. A client of Flink's parses strictly: a field too
many, or a missing number, and it retries for a minute and gives up. So every answer is a struct of
`shapes_*`, and nothing else is ever sent.
"""
