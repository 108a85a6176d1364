"""The table of the dashboard's addresses."""

from django.urls import URLPattern, URLResolver


def all_patterns(patterns: list[URLPattern | URLResolver]) -> list[URLPattern]:
    """Those of pages. Doors for programs have a namespace, and answer 401 instead of a page."""
    found: list[URLPattern] = []
    for each in patterns:
        if isinstance(each, URLPattern):
            found.append(each)
        elif each.namespace is None:
            found += all_patterns(each.url_patterns)
    return found
