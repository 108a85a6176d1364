"""Flink's REST interface over our rows: routes and shapes of Flink 2.3, exact to the field.

Flink's own command line and web page work with it. Flink's clients parse strictly: an extra field
or a missing number makes them retry for a minute and give up. So every answer has exactly Flink's
fields.
"""
