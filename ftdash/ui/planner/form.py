"""The form for assumptions that replace measurements. An empty field means as measured."""

from dataclasses import dataclass

from django import forms

from ftdash.runs.queries.planning import PlanningFacts

BYTES_PER_MB = 1e6
MS_PER_HOUR = 3_600_000.0


def _field(label: str, help_text: str, least: float = 0.0) -> forms.FloatField:
    return forms.FloatField(
        label=label,
        help_text=help_text,
        required=False,
        min_value=least,
        max_value=1e12,
        widget=forms.NumberInput(attrs={"step": "any", "inputmode": "decimal"}),
    )


class PlannerForm(forms.Form):
    """In people's usual units."""

    interval_s = _field("Interval, s", "From one checkpoint to the next.", 0.001)
    cost_ms = _field("Cost of a checkpoint, ms", "What it takes from the work.")
    between_failures_h = _field("Between failures, h", "The mean time.", 1e-6)
    state_mb = _field("State, MB", "The full size.")
    read_mb_s = _field("Read speed, MB/s", "Of the storage, all slots together.", 1e-6)
    bandwidth_mb_s = _field("Bandwidth, MB/s", "Of the network, all slots together.", 1e-6)


@dataclass(frozen=True, slots=True)
class Presumed:
    """Measured, or from the form. None: neither."""

    interval_ms: float | None
    cost_ms: float | None
    between_failures_ms: float | None
    state_bytes: float | None
    read_bytes_per_s: float | None
    bandwidth_bytes_per_s: float | None


def presumed(facts: PlanningFacts, form: PlannerForm) -> Presumed:
    """A value that is not a number counts as empty; the form says so next to the field."""
    form.is_valid()
    given: dict[str, float | None] = form.cleaned_data
    costs, failures = facts.costs, facts.failures

    def chosen(name: str, unit: float, measured: float | None) -> float | None:
        value = given.get(name)
        return measured if value is None else value * unit

    return Presumed(
        interval_ms=chosen("interval_s", 1000.0, facts.interval_ms),
        cost_ms=chosen("cost_ms", 1.0, costs.standstill_ms if costs else None),
        between_failures_ms=chosen(
            "between_failures_h", MS_PER_HOUR, failures.mean_ms if failures else None
        ),
        state_bytes=chosen("state_mb", BYTES_PER_MB, costs.state_bytes if costs else None),
        read_bytes_per_s=chosen("read_mb_s", BYTES_PER_MB, facts.restore_bytes_per_s),
        bandwidth_bytes_per_s=chosen(
            "bandwidth_mb_s", BYTES_PER_MB, costs.upload_bytes_per_s if costs else None
        ),
    )
