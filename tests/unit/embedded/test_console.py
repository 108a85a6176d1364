"""The console's output to a terminal and to a log file."""

import io

from ftdash.embedded.outcome import CLEAR_LINE, Console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_overwrites_a_single_status_line() -> None:
    terminal = Terminal()
    console = Console(terminal)

    console.status("one")
    console.status("two")
    console.line("kept")

    assert terminal.getvalue() == f"{CLEAR_LINE}one{CLEAR_LINE}two{CLEAR_LINE}kept\n"


def test_a_log_file_is_not_filled_with_status_lines() -> None:
    file = io.StringIO()
    console = Console(file)

    for number in range(100):
        console.status(f"status {number}")

    assert file.getvalue() == "status 0\n"


def test_a_log_file_gets_the_status_at_once_when_another_phase_begins() -> None:
    file = io.StringIO()
    console = Console(file)

    for phase in ("starts", "runs", "runs", "starts"):
        console.status(f"it {phase}", phase)

    assert file.getvalue() == "it starts\nit runs\nit starts\n"


def test_a_step_shows_the_time_since_the_start() -> None:
    file = io.StringIO()

    Console(file).step("Starting ...")

    assert file.getvalue() == "   0.0 s  Starting ...\n"
