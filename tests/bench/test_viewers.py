"""The benchmark of viewers compares the right checkpoints with each other."""

from datetime import UTC, datetime

from bench.dashboard.viewers import Watched, Window, compared


def test_a_checkpoint_counts_in_the_window_of_its_trigger() -> None:
    triggered = {1.0: 100.0, 1.5: None, 2.0: 900.0, 11.0: 150.0, 12.0: 150.0, 21.0: 100.0}
    rows = [{"trigger_at": at(s), "end_to_end_ms": ms} for s, ms in triggered.items()]
    windows = [Window(0.0, 2.0, 0), Window(10.0, 14.0, 200), Window(20.0, 22.0, 0)]
    watched = Watched(refreshes=[(9.0, 5_000.0), (10.0, 4.0), (13.9, 6.0), (14.0, 5_000.0)])

    found = compared(rows, windows, watched)

    assert found == {
        "ratio": 1.5,
        "alone_ms": 100.0,
        "watched_ms": 150.0,
        "checkpoints": [2, 2],
        "viewers": 200,
        "refreshes_per_s": 0.5,
        "refresh_p95_ms": 6.0,
        "failed_tabs": 0,
    }


def test_without_a_completed_checkpoint_no_figure_is_reported() -> None:
    found = compared([], [Window(0.0, 2.0, 0), Window(2.0, 4.0, 1)], Watched())

    assert (found["ratio"], found["refresh_p95_ms"]) == (None, None)


def at(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, tz=UTC).isoformat()
