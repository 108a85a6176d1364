"""Plotly figures as plain JSON values, built from the answers of the queries. Pure.

Colours are names of the style sheet's custom properties, written `@name`; the page's script inserts
the values of the current theme. Colour is never the only sign: bars have patterns, lines have
dashes, and points have symbols. Times are milliseconds since 1970; the script converts them to the
viewer's zone. Figures have only 2-D SVG traces, of at most `POINTS_MAX` points each.
"""
