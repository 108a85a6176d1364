"""Template filters and tags over `ftdash.ui.formats`, and the two kinds of time on a page.

`moment` is a point in time, rewritten by the page's script in the viewer's zone with UTC in the
title. `clock` is an age that ticks: it carries its value at the time of rendering, so that a
viewer's clock that is wrong does no harm.
"""

from datetime import datetime

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from ftdash.ui import formats

register = template.Library()
register.filter("duration", formats.duration)
register.filter("size", formats.size)
register.filter("count", formats.count)
register.filter("rate", formats.rate)
register.filter("percent", formats.percent)
register.filter("utc", formats.utc)
register.filter("utc_clock", formats.utc_clock)
register.filter("event_time", formats.event_time)
register.filter("plural", formats.plural)


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
