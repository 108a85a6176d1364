"""Template filters and tags over `ftdash.formats`, and the two kinds of time on a page.

`moment` is a point in time, which the page's script converts to the viewer's zone, with UTC in the
title. `clock` is an age that ticks: it contains its value at the time of rendering, so that a wrong
clock of the viewer does no harm.
"""

import re
from datetime import datetime, timedelta
from urllib.parse import urlencode

from django import template
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from ftdash import formats
from ftdash.incidents.causes import Step
from ftdash.runs.queries.freshness import Heard, silent_in
from ftdash.ui.actions.page import ACTIONS

_FORMS = {form.command.kind: slug for slug, form in reversed(ACTIONS.items())}

register = template.Library()
register.filter("duration", formats.duration)
register.filter("held_for", formats.held_for)
register.filter("period", formats.period)
register.filter("size", formats.size)
register.filter("count", formats.count)
register.filter("number", formats.number)
register.filter("rate", formats.rate)
register.filter("percent", formats.percent)
register.filter("utc", formats.utc)
register.filter("utc_clock", formats.utc_clock)
register.filter("event_time", formats.event_time)
register.filter("plural", formats.plural)
register.filter("words", formats.words)
register.filter("short_path", formats.short_path)


@register.filter
def age_ms(since: datetime | None) -> int | str:
    """The age at the time of rendering, for scripts; empty if unknown."""
    if since is None:
        return ""
    return max(0, round((timezone.now() - since).total_seconds() * 1000))


@register.filter
def silent_in_ms(seen: Heard) -> int | str:
    """The time until scripts check for silence again; empty if something is silent already."""
    left = silent_in(seen)
    return "" if left is None else round(left / timedelta(milliseconds=1))


@register.filter
def breakable(setting: object) -> SafeString:
    """Allows breaks after a dot or an underscore, so that no word of a key or value is split."""
    parts = re.split(r"(?<=[._])(?=\w)", str(setting))
    return format_html_join(mark_safe("<wbr>"), "{}", ((part,) for part in parts))


@register.filter
def ended(text: str) -> str:
    """Ends a sentence: a library's text often has no period, and another sentence follows."""
    return text if text.endswith((".", "!", "?", "…", ":")) else f"{text}."


@register.filter
def in_cell(text: object) -> str:
    """Fits text into a cell of a Markdown table, which a bar or a line break would end."""
    return " ".join(str(text).split()).replace("|", "\\|")


@register.filter
def milliseconds(between: timedelta | None) -> float | None:
    return None if between is None else between.total_seconds() * 1000


@register.inclusion_tag("parts/ratio_bar.html")
def ratio_bar(busy: float, backpressured: float) -> dict[str, str]:
    """Draws in SVG attributes, because the pages allow no inline styles."""
    return {
        "busy_width": f"{100 * busy:.1f}",
        "backpressured_start": f"{100 * busy:.1f}",
        "backpressured_width": f"{100 * backpressured:.1f}",
    }


@register.filter
def most(values: list[float]) -> float | None:
    return max(values, default=None)


@register.filter
def least(values: list[float]) -> float | None:
    return min(values, default=None)


@register.inclusion_tag("parts/sparkline.html")
def sparkline(values: list[float]) -> dict[str, str]:
    """Draws from zero up, oldest on the left; the text next to it says the same."""
    highest = max(values, default=0.0) or 1.0
    step = 100 / max(1, len(values) - 1)
    heights = [23 - 22 * value / highest for value in values]
    points = [f"{index * step:.1f},{height:.1f}" for index, height in enumerate(heights)]
    if len(points) == 1:
        points.append(f"100,{heights[0]:.1f}")
    return {"points": " ".join(points)}


@register.simple_tag
def moment(when: datetime | None, style: str = "clock") -> str | SafeString:
    """`style` is `clock` (time of day, with the date if it is not today) or `full`."""
    if when is None:
        return formats.UNKNOWN
    return format_html(
        '<time datetime="{}" title="{}" data-moment="{}">{}</time>',
        when.isoformat(),
        formats.utc(when),
        style,
        formats.utc(when) if style == "full" else formats.utc_clock(when),
    )


@register.simple_tag
def countdown(until: datetime) -> SafeString:
    """The time left until then, which ticks down to zero."""
    left_ms = max(0, round((until - timezone.now()).total_seconds() * 1000))
    return format_html(
        '<span class="clock" data-age-ms="{}" data-is-left title="at {}">{}</span>',
        -left_ms,
        formats.utc(until),
        formats.age(left_ms),
    )


@register.simple_tag
def step_address(pipeline: str, step: Step) -> str:
    """Returns the address of a next step's form, with the values that it needs."""
    given = f"?{urlencode(dict(step.given))}" if step.given else ""
    return reverse("act", args=[pipeline, _FORMS[step.kind]]) + given


@register.simple_tag
def clock(since: datetime | None, never: str = "never") -> str | SafeString:
    if since is None:
        return format_html('<span class="never">{}</span>', never)
    milliseconds = (timezone.now() - since).total_seconds() * 1000
    return format_html(
        '<span class="clock" data-age-ms="{}" title="since {}">{}</span>',
        max(0, round(milliseconds)),
        formats.utc(since),
        formats.age(milliseconds),
    )
