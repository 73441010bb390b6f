"""The table of realism: which bars a model meets, and how figures are written."""

from __future__ import annotations

import pytest

from vecenv.learn.metrics import Interval
from vecenv.worldmodel.validation.figures import point
from vecenv.worldmodel.validation.table import cells, markdown, rows, verdict

NAN = float("nan")
ROWS = {row.key: row for row in rows()}


@pytest.mark.parametrize(
    ("key", "value", "rivals", "met"),
    [
        ("nll", -2.62, {"GARCH-t": -2.59}, True),
        ("nll", -2.60, {"GARCH-t": -2.59}, False),
        ("joint_nll", -2.9, {"GARCH-t": -2.5}, None),
        ("crps", 70.0, {"FHS": 70.1, "GARCH-t": 60.0}, True),
        ("crps", 70.2, {"FHS": 70.1}, False),
        ("crps", 70.2, {}, None),
        ("energy_score", 0.66, {"FHS": 0.69, "bootstrap, last 250 days": 0.65}, False),
        ("energy_score", 0.64, {"FHS": 0.69, "bootstrap, last 250 days": 0.65}, True),
        ("volatility_ratio", 1.09, {}, False),
        ("market_volatility_ratio_days_31_40", 0.92, {}, True),
        ("ks_5", 0.02, {"GBM": 0.03, "FHS": 0.019}, False),
        ("excess_kurtosis", 4.9, {}, True),
        ("excess_kurtosis", 6.1, {}, False),
        ("magnitude_acf_error", 0.009, {"FHS": 0.001}, True),
        ("magnitude_acf_error", 0.02, {"FHS": 0.03}, True),
        ("magnitude_acf_error", 0.02, {"FHS": 0.01}, False),
        ("leverage", -0.06, {}, True),
        ("leverage", -0.04, {}, False),
        ("leverage", 0.2, {}, False),
        ("mean_correlation", 0.279, {}, True),
        ("mean_correlation", 0.21, {}, False),
        ("correlation_rmse", 0.061, {}, False),
        ("invalid_bars", 0.0, {}, True),
        ("invalid_bars", 1e-6, {}, False),
        ("direction_accuracy", 0.53, {}, False),
        ("memory_ratio", 0.99, {}, False),
        ("boosting_score", 0.02, {}, True),
        ("boosting_score", 0.021, {}, False),
        ("gru_score", 0.05, {"FHS": 0.01}, True),
        ("panel_boosting_score", 0.11, {}, False),
        ("panel_gru_score", 0.1, {}, True),
        ("lstm_error", 0.5, {}, None),
        ("skew", 0.0, {}, None),
        ("ks_1", NAN, {"GBM": 0.1}, None),
    ],
)
def test_bars(key, value, rivals, met):
    real = {
        "excess_kurtosis": Interval(5.0, 4.0, 6.0),
        "leverage": point(-0.1),
        "mean_correlation": point(0.25),
    }
    assert verdict(ROWS[key], real, {key: point(value)}, {name: {key: point(v)} for name, v in rivals.items()}) is met


def test_cells_and_markdown():
    real = {"skew": Interval(-0.356, -0.5, -0.2)}
    models = {"neural": {"skew": point(-0.3)}, "FHS": {"skew": point(NAN)}}
    headings, lines = cells([ROWS["skew"], ROWS["volatility_ratio"]], real, models, judged="neural")
    assert headings == ["figure", "better", "real", "neural", "good", "met", "FHS"]
    assert lines[0] == ["skew", "≈", "-0.36 [-0.50, -0.20]", "-0.30", "", "", "–"]
    assert lines[1] == ["volatility ratio", "≈", "1.000", "–", "0.92 to 1.08", "–", "–"]
    assert cells([ROWS["skew"]], real, models, intervals=False)[1][0][2] == "-0.36"
    assert markdown(["a", "b", "c"], [["|r|", "", "1"]]) == "| a | b | c |\n| --- | --- | ---: |\n| \\|r\\| |  | 1 |"
