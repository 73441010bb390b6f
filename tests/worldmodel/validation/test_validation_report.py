"""Reports of made-up figures: what is counted, written and printed."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from vecenv.learn.metrics import Interval
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.validation.figures import point
from vecenv.worldmodel.validation.judge import Trial
from vecenv.worldmodel.validation.report import Report, print_report, write_report
from vecenv.worldmodel.validation.rows import rows
from vecenv.worldmodel.validation.temperature_sweep import MEASURES, sweep_cells

SETTINGS = {"long_days": 80, "paths": 8, "draws": 199, "seeds": 1}
SWEEP = {t: dict.fromkeys(MEASURES, t) for t in (0.5, 2.0)}


@pytest.fixture
def report() -> Report:
    """A model that meets three bars of five and leaves one undecided, beside two rivals."""
    trial = Trial(synthetic_bars(1, 390, 2, seed=3), 260, 280)
    models = {
        "neural": {"crps": point(70.0), "skew": point(0.1), "leverage": point(-0.30), "ks_1": point(0.02)},
        "FHS": {"crps": point(72.0), "ks_1": point(0.03)},
        "GBM": {"crps": point(75.0), "ks_1": point(float("nan"))},
    }
    models["neural"] |= {"volatility_ratio": point(1.0), "zero_gaps": point(0.05)}
    real = {"leverage": point(-0.1), "zero_gaps": point(0.06), "skew": Interval(0.2, 0.1, 0.3)}
    differences = {"crps": {"FHS": Interval(-2.0, -4.0, 0.5), "GBM": Interval(-5.0, -6.0, -4.0)}}
    return Report(trial, SETTINGS, ("S9",), real, models, "neural", {"neural": 1.5}, SWEEP, differences)


def test_a_run_as_json(report, tmp_path):
    told = write_report(report, tmp_path)
    assert json.loads((tmp_path / "validation.json").read_text()) == told
    assert told["bars"]["crps"] == {"bar": "surely below FHS", "met": False, "verdict": "undecided"}
    assert told["former_bars"]["crps"] == {"bar": "below FHS", "met": True, "verdict": "yes"}
    assert told["bars"]["leverage"]["verdict"] == "no" and told["former_bars"]["leverage"]["verdict"] == "yes"
    assert told["bars"]["hill"] == {"bar": "within real interval", "met": None, "verdict": None}
    # Crps, leverage, volatility and KS have bars in earlier tables too, the gaps of zero have not.
    assert told["counts"] == {
        "bars": {"met": 3, "undecided": 1, "of": 5},
        "former_bars": {"met": 4, "undecided": 0, "of": 4},
    }
    assert "zero_gaps" in told["bars"] and "zero_gaps" not in told["former_bars"]
    assert told["models"]["GBM"]["ks_1"] == {"mean": None, "low": None, "high": None}
    assert told["real"]["skew"] == {"mean": 0.2, "low": 0.1, "high": 0.3}
    dates = report.trial.bars.dates
    assert told["train_end"] == str(dates[259]) and (told["origins"], told["forecast_days"]) == (4, 11)
    assert told["test"] == {"first_day": str(dates[280]), "last_day": str(dates[389]), "days": 110}
    assert told["temperatures"]["0.5"] == SWEEP[0.5] and told["seconds"] == {"neural": 1.5}
    assert told["differences"]["crps"]["FHS"] == {"mean": -2.0, "low": -4.0, "high": 0.5}
    assert report.summary == (
        "neural meets 3 of 5 bars, 1 undecided. Of the lines of earlier tables, by their bars, it meets 4 of 4."
    )


def test_a_run_as_a_page(report):
    page = report.to_markdown()
    dates = report.trial.bars.dates
    assert page.startswith("# Realism on ")
    assert (
        f"2 symbols, 110 test days {dates[280]} to {dates[389]}; baselines fitted to days up to {dates[259]}. " in page
    )
    assert "8 paths of 40 days after each of 4 origins, 199 draws of the day after each of 11 days; 1 seed(s)." in page
    assert report.summary in page and "weights" not in page.split("\n\n")[1]
    lines = [line for line in page.splitlines() if line.startswith("|")]
    # Two headings, the figures, the paired score, and the temperatures.
    assert len(lines) == 2 + len(rows(80)) + 2 + 1 + 2 + len(SWEEP)
    assert "## neural less each other model" in page and "## neural by temperature" in page
    assert "| CRPS, 1 day, 1e-4 | ↓ | – | 70.00 | surely below FHS | undecided | 72.00 | 75.00 |" in lines
    alone = Report(report.trial, SETTINGS, (), {}, {"FHS": {}}, None, {}, {}, {})
    assert "##" not in alone.to_markdown() and "counts" not in alone.to_json()


def test_a_run_on_a_terminal(report, capsys):
    """The tables are as wide as the models need; the second is of the judged one's bars alone."""
    print_report(report, Console(width=40))
    told = capsys.readouterr().out
    figures, good, sweep = told.split("What counts as good")[0], *told.split("What counts as good")[1].split("By temp")
    assert len(max(figures.splitlines(), key=len)) > 60 and "72.00" in figures and "72.00" not in good
    assert "skew" in figures and "skew" not in good and "undec" in good and "(best)" in sweep
    assert "neural meets 3 of 5 bars" in " ".join(told.split())


def test_the_best_temperature_has_the_least_energy_score():
    sweep = {0.5: {**SWEEP[0.5], "energy_score": 3.0}, 2.0: SWEEP[2.0]}
    headings, lines = sweep_cells(sweep)
    assert headings == ["temperature", *MEASURES.values()]
    assert lines[0] == ["0.5", "0.5000", "3.0000", *["0.5000"] * 4] and lines[1][0] == "2 (best)"
