"""What commands say while they work, on a terminal and in a log."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from vecenv.tasks.commands.progress import StepBar, TextBar, TrainingBar, working

NAN = float("nan")


def metrics(frames: int, outcome: float = NAN) -> dict[str, float]:
    return {"frames": frames, "samples_per_second": 1234.5, "return_percent": outcome, "grade": 0.5}


def written(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, force_interactive=terminal, width=150)


def test_a_log_gets_a_line_after_the_first_update_and_after_every_tenth():
    console = written(False)
    with TrainingBar(console, 100, "compiling …") as bar:
        for frames in range(2, 102, 2):
            if frames % 8 == 0:
                bar.say("drawing new paths …")
            bar.show(metrics(frames, 3.0 if frames > 10 else NAN))
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "Training  compiling …"
    assert lines[1] == "Training    2% 1,234 samples/s · after 0 s"
    assert lines[2] == "Training  drawing new paths …"
    shares = [int(line.split()[1][:-1]) for line in lines if "samples/s" in line]
    assert shares == [2, *range(10, 101, 10)] and len(lines) == 2 + len(shares)
    assert lines[-1] == "Training  100% 1,234 samples/s · return +3.0% · grade 0.50 · after 0 s"


def test_a_terminal_gets_a_bar_that_says_what_is_done():
    console = written(True)
    with TrainingBar(console, 100, "compiling …") as bar:
        bar.refresh()
        bar.show(metrics(50))
        bar.say("drawing new paths …")
        bar.refresh()
    shown = console.file.getvalue()
    assert shown.index("compiling …") < shown.index("drawing new paths …")
    assert "50%" in shown and "after" not in shown


@pytest.mark.parametrize("terminal", [True, False])
def test_work_is_announced(terminal, capsys):
    console = written(terminal)
    with working(console, "Making the market …"):
        pass
    assert ("Making the market …" in console.file.getvalue()) == terminal
    assert capsys.readouterr().err == ("" if terminal else "Making the market …\n")


def test_other_work_has_lines_of_its_own():
    for bar, shown, lines in (
        (StepBar(written(False), "loss"), [(1, 20, 0.5), (2, 20, 0.25), (20, 20, 0.125)],
         ["Training    5% loss 0.500", "Training   10% loss 0.250", "Training  100% loss 0.125"]),
        (TextBar(written(False)), [(0, 4000), (4000, 4000)],
         ["Scoring     0% 0 of 4,000 texts", "Scoring   100% 4,000 of 4,000 texts"]),
    ):  # fmt: skip
        with bar:
            for step in shown:
                bar.show(*step)
        told = [line.partition(" · after")[0] for line in bar.console.file.getvalue().splitlines()]
        assert told == lines
