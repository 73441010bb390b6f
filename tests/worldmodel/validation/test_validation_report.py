"""Reports: differences paired by day, which bars a model meets, and how figures are written."""

import json
import math
import re
from pathlib import Path

import pytest
import torch
from rich.console import Console

from tests.worldmodel.validation.simulated_windows import NAN, normal
from vecenv.learn.intervals import Interval
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.validation.acceptance import Bar, Verdict, half_leverage, surely_below
from vecenv.worldmodel.validation.criteria import CRITERIA, EDITIONS, LAST_YEAR_BOOTSTRAP, criteria
from vecenv.worldmodel.validation.discriminator import FORMS
from vecenv.worldmodel.validation.figures import point
from vecenv.worldmodel.validation.forecast import (
    CRPS_UNIT,
    DailyScores,
    daily_scores,
    energy_score,
    forecast_scores,
    mean_scores,
    paired_difference,
    paired_differences,
)
from vecenv.worldmodel.validation.report import (
    MEASURES,
    Report,
    cells,
    count,
    difference_cells,
    heading,
    markdown,
    print_report,
    sweep_cells,
    verdict,
    write_report,
)
from vecenv.worldmodel.validation.trial import Trial
from vecenv.worldmodel.validation.windows import BLOCK, Windows


def test_differences_are_paired_by_days_that_weigh_by_their_stocks():
    """Days differ by ten, the models by a tenth on every day: the interval is as narrow as the difference is steady."""
    hard, count = 10.0 * normal(60).abs(), torch.full((60,), 5)
    model = DailyScores(5 * hard, count, 3)
    rival = DailyScores(5 * (hard + 0.1 + 0.01 * normal(60, seed=1)), count, 3)
    found = paired_difference(model, rival)
    assert found != paired_difference(model._replace(block=6), rival)
    assert found.mean == pytest.approx(-0.1, abs=0.01) and -0.11 < found.low < found.high < -0.09
    back = paired_difference(rival, model)
    assert back.mean == pytest.approx(-found.mean) and back.low == pytest.approx(-found.high, abs=1e-3)
    model = DailyScores(torch.tensor([2.0, 0.0, 9.0]), torch.tensor([2, 0, 3]), 1)
    rival = DailyScores(torch.tensor([4.0, 0.0, 3.0]), torch.tensor([2, 0, 3]), 1)
    assert paired_difference(model, rival).mean == pytest.approx((9.0 + 2.0 - 7.0) / 5)
    with pytest.raises(ValueError, match="the same days and stocks"):
        paired_difference(model, rival._replace(stocks=torch.tensor([2, 1, 3])))
    samples, outcomes = normal(6, 50, 3), normal(6, 3, seed=1)
    outcomes[2, 1] = math.nan
    forecasts = forecast_scores(samples, outcomes)
    scale = torch.ones(3, dtype=torch.float64)
    real, drawn = Windows(normal(4, 1, 20, 3), scale), Windows(normal(4, 5, 20, 3, seed=2), scale)
    found = daily_scores(forecasts, 2, real, drawn)
    assert found["crps"].stocks.tolist() == [3, 3, 2, 3, 3, 3] and found["crps"].block == 2
    assert found["crps"].total[2] == pytest.approx(float(forecasts.crps[2, [0, 2]].sum()) / CRPS_UNIT)
    assert torch.equal(found["energy_score"].total, energy_score(real, drawn)) and found["energy_score"].block == BLOCK
    twice = {"crps": found["crps"]._replace(total=3.0 * found["crps"].total)}
    assert torch.allclose(mean_scores([{"crps": found["crps"]}, twice])["crps"].total, 2.0 * found["crps"].total)
    less = paired_differences({"a": found, "b": found, "c": found}, "b")
    assert {name: set(rivals) for name, rivals in less.items()} == {"crps": {"a", "c"}, "energy_score": {"a", "c"}}
    assert less["crps"]["a"].mean == 0.0


ROWS = {row.key: row for row in criteria()}
REAL = {"leverage": -0.1, "mean_correlation": 0.25, "volume_pair_correlation": 0.30, "range_pair_correlation": 0.25}
REAL |= {"zero_gaps": 0.066, "gap_kurtosis": 16.0, "gap_body_ratio": 0.50, "drift": 8.0}
REAL = {key: point(value) for key, value in REAL.items()} | {"excess_kurtosis": Interval(5.0, 4.0, 6.0)}


def judged(bar: Bar | None, key: str, value: float, rivals: dict, differences: dict | None = None) -> Verdict | None:
    known = {name: {key: point(v)} for name, v in rivals.items()}
    return verdict(bar, ROWS[key], REAL, {key: point(value)}, known, {key: differences or {}})


BARS = {
    "volatility_ratio": {1.09: False},
    "market_volatility_ratio_days_31_40": {0.92: True, 0.919: False},
    "excess_kurtosis": {4.9: True, 6.1: False},
    "leverage": {-0.06: True, -0.04: False, -0.149: True, -0.151: False, 0.2: False},
    "mean_correlation": {0.279: True, 0.21: False},
    "correlation_rmse": {0.06: True, 0.061: False},
    "invalid_bars": {0.0: True, 1e-6: False},
    "direction_accuracy": {0.52: True, 0.53: False},
    "memory_ratio": {1.0: True, 0.99: False},
    "boosting_score": {0.02: True, 0.021: False},
    "panel_boosting_score": {0.11: False},
    "panel_gru_score": {0.1: True},
    "volume_pair_correlation": {0.251: True, 0.13: False},
    "range_pair_correlation": {0.301: False},
    "zero_gaps": {0.034: True, 0.018: False, 0.133: False},
    "gap_kurtosis": {31.9: True, 112.0: False, 7.9: False},
    "gap_body_ratio": {0.549: True, 0.449: False},
    "bars_boosting_score": {0.05: True},
    "bars_gru_score": {0.051: False},
    "panel_bars_boosting_score": {0.15: True},
    "panel_bars_gru_score": {0.16: False},
    "skew": {0.0: None},
}
"""Values of a figure, and whether they meet its bar, whatever the rivals."""

AMONG_RIVALS = (
    ("nll", -2.62, {"GARCH-t": -2.59}, True),
    ("nll", -2.60, {"GARCH-t": -2.59}, False),
    ("joint_nll", -2.9, {"GARCH-t": -2.5}, None),
    ("ks_5", 0.02, {"GBM": 0.03, "FHS": 0.019}, False),
    ("ks_1", NAN, {"GBM": 0.1}, None),
    ("magnitude_acf_error", 0.009, {"FHS": 0.001}, True),
    ("magnitude_acf_error", 0.02, {"FHS": 0.03}, True),
    ("magnitude_acf_error", 0.02, {"FHS": 0.01}, False),
    ("gru_score", 0.05, {"FHS": 0.01}, True),
    ("drift", 4.7, {"FHS": 6.6}, True),
    ("drift", 11.3, {"FHS": 6.6}, True),
    ("drift", -0.8, {"FHS": 6.6}, False),
    ("drift", 8.0, {"GBM": 6.6}, None),
)


def test_bars():
    cases = [(key, value, {}, met) for key, values in BARS.items() for value, met in values.items()]
    for key, value, rivals, met in (*cases, *AMONG_RIVALS):
        expected = None if met is None else Verdict.of(met)
        assert judged(ROWS[key].bar, key, value, rivals) is expected, (key, value)
    # A leverage near zero may be missed by two hundredths.
    real, row = {"leverage": point(-0.0003)}, ROWS["leverage"]
    for value, met in ((-0.0202, True), (-0.0287, False), (0.0195, True), (0.0205, False)):
        assert verdict(row.bar, row, real, {"leverage": point(value)}, {}) is Verdict.of(met)
    # The former bar took any size of the right sign.
    assert judged(half_leverage(), "leverage", -9.0, {}) is judged(row.former, "leverage", -9.0, {}) is Verdict.MET


def test_a_score_is_surely_below_only_with_its_whole_interval():
    far, near, above = Interval(-1.0, -2.0, -0.1), Interval(-0.5, -0.9, 0.1), Interval(0.5, 0.2, 0.9)
    for differences, expected in (
        ({"a": far, "b": Interval(-0.5, -0.9, -0.2)}, Verdict.MET),
        ({"a": far, "b": near}, Verdict.UNDECIDED),
        ({"a": near, "b": above}, Verdict.MISSED),
        ({"a": far}, None),
        ({"a": far, "b": point(-1.0)}, None),
    ):
        assert judged(surely_below("a", "b"), "crps", 70.0, {"a": 60.0, "b": 60.0}, differences) is expected
    rivals = {"FHS": 80.0, "bootstrap, last 250 days": 80.0}
    for key, names in (("crps", ["FHS"]), ("energy_score", list(rivals))):
        assert judged(ROWS[key].bar, key, 70.0, rivals, dict.fromkeys(names, far)) is Verdict.MET
        assert judged(ROWS[key].bar, key, 70.0, rivals, dict.fromkeys(names, near)) is Verdict.UNDECIDED
        assert judged(ROWS[key].former, key, 70.0, rivals) is Verdict.MET
        assert judged(ROWS[key].former, key, 81.0, rivals) is Verdict.MISSED
    told = [Verdict.MET, Verdict.UNDECIDED, None, Verdict.MISSED, Verdict.MET, None]
    assert count(told) == {"met": 2, "undecided": 1, "of": 4}


def test_an_auc_is_judged_by_its_whole_interval_and_on_both_sides_of_chance():
    for key, low, high, expected in (
        ("gru_auc", 0.41, 0.599, Verdict.MET),
        ("bars_boosting_auc", 0.45, 0.61, Verdict.UNDECIDED),
        ("boosting_auc", 0.39, 0.5, Verdict.UNDECIDED),
        ("bars_gru_auc", 0.61, 0.7, Verdict.MISSED),
        ("gru_auc", 0.1, 0.39, Verdict.MISSED),
        ("panel_gru_auc", 0.26, 0.749, Verdict.MET),
        ("panel_bars_gru_auc", 0.2, 0.8, Verdict.UNDECIDED),
        ("panel_boosting_auc", 0.76, 1.0, Verdict.MISSED),
        ("panel_bars_boosting_auc", 0.0, 0.24, Verdict.MISSED),
        ("gru_auc", NAN, NAN, None),
    ):
        assert verdict(ROWS[key].bar, ROWS[key], {}, {key: Interval(0.5, low, high)}, {}) is expected, key


DIGITS = {
    1: "gap_kurtosis",
    2: "crps excess_kurtosis skew hill hill_wide hill_left drawdown_mean drawdown_w1 drift",
    4: "nll joint_nll energy_score variogram_score ks_1 ks_5 ks_20 w1_1 w1_5 w1_20 return_acf_error magnitude_acf "
    "magnitude_acf_error leverage leverage_error gap_ks body_ks range_ks invalid_bars memory_share zero_gaps",
    5: "mae sampled_mae",
}
"""Decimals of figures as they are shown; of all others three."""


def test_lines_of_the_table():
    judged = {name: [row for row in criteria() if row.bar_of(edition)] for name, edition in EDITIONS.items()}
    assert {name: len(rows) for name, rows in judged.items()} == {"earlier": 36, "without_auc": 46, "all": 54}
    changed = [row.key for row in judged["earlier"] if row.bar_of(1) is not row.bar]
    assert changed == [row.key for row in criteria() if row.former] == ["crps", "energy_score", "leverage"]
    assert all(row.bar_of(2) is row.bar for row in judged["without_auc"])
    added = {row.key for row in judged["without_auc"]} - {row.key for row in judged["earlier"]}
    assert added >= {"drift", "zero_gaps", "panel_bars_gru_score"}
    assert {row.key for row in criteria() if row.since == 3} == {f"{name}_auc" for name in FORMS if name != "lstm"}
    for digits, keys in DIGITS.items():
        assert [row.key for row in criteria() if row.digits == digits and "_days_" not in row.key] == keys.split()


def test_tables_of_the_page_have_the_criteria_of_the_list():
    page = Path(__file__).parents[3] / "benchmarks" / "results" / "realism.md"
    lines = [line for line in page.read_text().splitlines() if re.match(r"\| .+ [↓↑≈] \| ", line)]
    for line, row in zip(lines, 3 * [row for row in CRITERIA if row.bar], strict=True):
        label = row.label.replace("|", "\\|")
        assert line.startswith(f"| {label} {row.aim.value} | ") and f" | {row.bar.text} | " in line


def test_cells_and_markdown():
    assert heading("bootstrap, last 250 days") == "bootstrap, last 250 days †" and heading("bootstrap") == "bootstrap"
    models = {"neural": {}, "bootstrap, last 250 days": {}}
    assert cells([ROWS["skew"]], {}, models, judged="neural")[0][-1] == "bootstrap, last 250 days †"
    less = Interval(-1.0, -2.0, 0.5)
    headings, lines = difference_cells({"crps": {"bootstrap, last 250 days": less}})
    assert headings == ["score", "bootstrap, last 250 days †"]
    assert lines == [["CRPS, 1 day, 1e-4", "-1.000 [-2.000, 0.500]"]]
    models = {"neural": {"crps": point(1.0)}, "FHS": {"crps": point(2.0)}}
    (line,) = cells([ROWS["crps"]], {}, models, "neural", differences={"crps": {"FHS": less}})[1]
    assert line[4:6] == ["surely below FHS", "undecided"]
    real = {"skew": Interval(-0.356, -0.5, -0.2)}
    models = {"neural": {"skew": point(-0.3)}, "FHS": {"skew": point(NAN)}}
    headings, lines = cells([ROWS["skew"], ROWS["volatility_ratio"]], real, models, judged="neural")
    assert headings == ["figure", "better", "real", "neural", "good", "met", "FHS"]
    assert lines[0] == ["skew", "≈", "-0.36 [-0.50, -0.20]", "-0.30", "", "", "–"]
    assert lines[1] == ["volatility ratio", "≈", "1.000", "–", "0.92 to 1.08", "–", "–"]
    assert cells([ROWS["skew"]], real, models, intervals=False)[1][0][2] == "-0.36"
    assert markdown(["a", "b", "c"], [["|r|", "", "1"]]) == "| a | b | c |\n| --- | --- | ---: |\n| \\|r\\| |  | 1 |"
    headings, lines = sweep_cells({0.5: {**SWEEP[0.5], "energy_score": 3.0}, 2.0: SWEEP[2.0]})
    assert headings == ["temperature", *MEASURES.values()]
    assert lines[0] == ["0.5", "0.5000", "3.0000", *["0.5000"] * 4] and lines[1][0] == "2 (best)"


SETTINGS = {"long_days": 80, "paths": 8, "draws": 199, "seeds": 1}
SWEEP = {t: dict.fromkeys(MEASURES, t) for t in (0.5, 2.0)}


@pytest.fixture
def report() -> Report:
    trial = Trial(synthetic_bars(1, 390, 2, seed=3), 260, 280)
    mine = {"crps": 70.0, "skew": 0.1, "leverage": -0.30, "ks_1": 0.02, "volatility_ratio": 1.0, "zero_gaps": 0.05}
    models = {"neural": mine, "FHS": {"crps": 72.0, "ks_1": 0.03}, "GBM": {"crps": 75.0, "ks_1": NAN}}
    models |= {LAST_YEAR_BOOTSTRAP: {"crps": 71.0, "energy_score": 0.6, "volatility_ratio": 1.01}}
    models = {name: {key: point(value) for key, value in found.items()} for name, found in models.items()}
    models["neural"]["gru_auc"] = models[LAST_YEAR_BOOTSTRAP]["gru_auc"] = Interval(0.38, 0.35, 0.41)
    real = {"leverage": point(-0.1), "zero_gaps": point(0.06), "skew": Interval(0.2, 0.1, 0.3)}
    less = {"crps": {"FHS": Interval(-2.0, -4.0, 0.5), "GBM": Interval(-5.0, -6.0, -4.0)}}
    differences = {"neural": less, LAST_YEAR_BOOTSTRAP: {"crps": {"FHS": Interval(-1.0, -2.0, -0.5)}}}
    return Report(trial, SETTINGS, ("S9",), real, models, "neural", {"neural": 1.5}, SWEEP, differences)


def test_a_run_as_json_as_a_page_and_on_a_terminal(report, tmp_path, capsys):
    told = write_report(report, tmp_path)
    assert json.loads((tmp_path / "validation.json").read_text()) == told
    now, before = told["bars"], told["former_bars"]
    assert now["crps"] == {"bar": "surely below FHS", "met": False, "verdict": "undecided"}
    assert before["crps"] == {"bar": "below FHS", "met": True, "verdict": "yes"}
    assert now["leverage"]["verdict"] == "no" and before["leverage"]["verdict"] == "yes"
    assert now["hill"] == {"bar": "within real interval", "met": None, "verdict": None}
    # Crps, leverage, volatility and KS have bars in the first edition too, the gaps of zero and the AUC have not.
    assert told["counts"]["neural"] == {
        "all": {"met": 3, "undecided": 2, "of": 6},
        "without_auc": {"met": 3, "undecided": 1, "of": 5},
        "earlier": {"met": 4, "undecided": 0, "of": 4},
    }
    assert "zero_gaps" in now and "gru_auc" in now and not {"zero_gaps", "gru_auc"} & before.keys()
    # No model is compared with itself: FHS by its CRPS, the bootstrap by its energy score.
    assert told["counts"]["FHS"] == {key: {"met": 0, "undecided": 0, "of": 1} for key in EDITIONS}
    assert told["counts"][LAST_YEAR_BOOTSTRAP]["all"] == {"met": 2, "undecided": 1, "of": 3}
    known = {key: met for key, met in told["verdicts"][LAST_YEAR_BOOTSTRAP].items() if met}
    assert known == {"crps": "yes", "volatility_ratio": "yes", "gru_auc": "undecided"}
    assert told["models"]["GBM"]["ks_1"] == {"mean": None, "low": None, "high": None}
    assert told["real"]["skew"] == {"mean": 0.2, "low": 0.1, "high": 0.3}
    dates = report.trial.bars.dates
    assert told["train_end"] == str(dates[259]) and (told["origins"], told["forecast_days"]) == (4, 11)
    assert told["test"] == {"first_day": str(dates[280]), "last_day": str(dates[389]), "days": 110}
    assert told["temperatures"]["0.5"] == SWEEP[0.5] and told["seconds"] == {"neural": 1.5}
    assert told["differences"]["neural"]["crps"]["FHS"] == {"mean": -2.0, "low": -4.0, "high": 0.5}
    page = report.to_markdown()
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert f"2 symbols, 110 test days {dates[280]} to {dates[389]}; baselines fitted to days up to {dates[259]}" in page
    assert report.summary in page and "weights" not in page.split("\n\n")[1]
    # Two headings, the figures and totals, the paired score, and the temperatures.
    assert len(lines) == 2 + len(criteria(80)) + len(EDITIONS) + 2 + 1 + 2 + len(SWEEP)
    assert "| without AUC | ↑ | – | 3 of 5 |  |  | 0 of 1 | 0 of 0 | 2 of 2 |" in lines
    assert "## neural less each other model" in page and "## neural by temperature" in page
    assert "| CRPS, 1 day, 1e-4 | ↓ | – | 70.00 | surely below FHS | undecided | 72.00 | 75.00 | 71.00 |" in lines
    alone = Report(report.trial, SETTINGS, (), {}, {"FHS": {}}, None, {}, {}, {})
    assert "##" not in alone.to_markdown() and "bars" not in alone.to_json()
    assert "| criteria met | ↑ | – | 0 of 0 |" in alone.to_markdown()
    print_report(report, Console(width=40))
    told = capsys.readouterr().out
    figures, rest = told.split("What counts as good")
    good, sweep = rest.split("By temp")
    assert len(max(figures.splitlines(), key=len)) > 60 and "72.00" in figures and "72.00" not in good
    assert "skew" in figures and "skew" not in good and "undec" in good and "(best)" in sweep
    assert all(total in figures for total in ("3 of 6", "4 of 4", "2 of 3"))
    summary = (
        "neural meets 3 of 6 criteria (2 undecided), without those of the AUC 3 of 5; of the lines of earlier tables, "
        "by their criteria, 4 of 4. bootstrap, last 250 days † meets 2 of 3 criteria (1 undecided), without those of"
    )
    assert report.summary.startswith(summary) and report.summary.endswith("have learned from no day of the test.")
    assert summary[:24] in " ".join(told.split())
