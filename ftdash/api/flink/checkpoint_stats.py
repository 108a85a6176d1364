"""A distribution in Flink's words: whole numbers, and quantiles that may be "NaN"."""

from ftdash.api.flink import shapes_checkpoints as shapes
from ftdash.checkpoints.distribution import Distribution, distribution


def stats_of(found: Distribution) -> shapes.Stats:
    quantiles: list[float | str] = [float(each) for each in found.quantiles] or [shapes.NAN] * 5
    return shapes.Stats(
        min=round(found.minimum),
        max=round(found.maximum),
        avg=int(found.average),
        p50=quantiles[0],
        p90=quantiles[1],
        p95=quantiles[2],
        p99=quantiles[3],
        p999=quantiles[4],
    )


def stats_unmeasured(like: Distribution) -> shapes.Stats:
    """Zeros, over as many values as `like` has."""
    return stats_of(distribution([0.0] if like.quantiles else []))
