"""The table of realism: which bars a model meets, and how figures are written."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from vecenv.learn.metrics import Interval
from vecenv.worldmodel.validation.acceptance import Bar, Verdict, half_leverage, surely_below
from vecenv.worldmodel.validation.figures import point
from vecenv.worldmodel.validation.rows import rows
from vecenv.worldmodel.validation.table import cells, count, difference_cells, heading, markdown, verdict

NAN = float("nan")
ROWS = {row.key: row for row in rows()}
REAL = {
    "excess_kurtosis": Interval(5.0, 4.0, 6.0),
    "leverage": point(-0.1),
    "mean_correlation": point(0.25),
    "volume_pair_correlation": point(0.30),
    "range_pair_correlation": point(0.25),
    "zero_gaps": point(0.066),
    "gap_kurtosis": point(16.0),
    "gap_body_ratio": point(0.50),
    "drift": point(8.0),
}


def judged(
    bar: Bar | None,
    key: str,
    value: float,
    rivals: Mapping[str, float],
    differences: Mapping[str, Interval] | None = None,
) -> Verdict | None:
    known = {name: {key: point(v)} for name, v in rivals.items()}
    return verdict(bar, ROWS[key], REAL, {key: point(value)}, known, {key: differences or {}})


BARS = {
    "volatility_ratio": ((1.09, False),),
    "market_volatility_ratio_days_31_40": ((0.92, True), (0.919, False)),
    "excess_kurtosis": ((4.9, True), (6.1, False)),
    "leverage": ((-0.06, True), (-0.04, False), (-0.149, True), (-0.151, False), (0.2, False)),
    "mean_correlation": ((0.279, True), (0.21, False)),
    "correlation_rmse": ((0.06, True), (0.061, False)),
    "invalid_bars": ((0.0, True), (1e-6, False)),
    "direction_accuracy": ((0.52, True), (0.53, False)),
    "memory_ratio": ((1.0, True), (0.99, False)),
    "boosting_score": ((0.02, True), (0.021, False)),
    "panel_boosting_score": ((0.11, False),),
    "panel_gru_score": ((0.1, True),),
    "lstm_error": ((0.5, None),),
    "volume_pair_correlation": ((0.251, True), (0.13, False)),
    "range_pair_correlation": ((0.301, False),),
    "zero_gaps": ((0.034, True), (0.018, False), (0.133, False)),
    "gap_kurtosis": ((31.9, True), (112.0, False), (7.9, False)),
    "gap_body_ratio": ((0.549, True), (0.449, False)),
    "bars_boosting_score": ((0.05, True),),
    "bars_gru_score": ((0.051, False),),
    "panel_bars_boosting_score": ((0.15, True),),
    "panel_bars_gru_score": ((0.16, False),),
    "bars_boosting_auc": ((0.9, None),),
    "skew": ((0.0, None),),
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
    cases = [(key, value, {}, met) for key, values in BARS.items() for value, met in values]
    for key, value, rivals, met in (*cases, *AMONG_RIVALS):
        expected = None if met is None else Verdict.of(met)
        assert judged(ROWS[key].bar, key, value, rivals) is expected, (key, value)


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ({"a": Interval(-1.0, -2.0, -0.1), "b": Interval(-0.5, -0.9, -0.2)}, Verdict.MET),
        ({"a": Interval(-1.0, -2.0, -0.1), "b": Interval(-0.5, -0.9, 0.1)}, Verdict.UNDECIDED),
        ({"a": Interval(-0.5, -0.9, 0.1), "b": Interval(0.5, 0.2, 0.9)}, Verdict.MISSED),
        ({"a": Interval(-1.0, -2.0, -0.1)}, None),
        ({"a": Interval(-1.0, -2.0, -0.1), "b": point(-1.0)}, None),
    ],
)
def test_a_score_is_surely_below_only_with_its_whole_interval(differences, expected):
    """Of all named baselines, whatever the means; without an interval nothing is told."""
    assert judged(surely_below("a", "b"), "crps", 70.0, {"a": 60.0, "b": 60.0}, differences) is expected


def test_crps_and_energy_score_are_judged_by_their_differences():
    rivals = {"FHS": 80.0, "bootstrap, last 250 days": 80.0}
    far, near = Interval(-1.0, -2.0, -0.1), Interval(-1.0, -2.0, 0.1)
    for key, names in (("crps", ["FHS"]), ("energy_score", list(rivals))):
        assert judged(ROWS[key].bar, key, 70.0, rivals, dict.fromkeys(names, far)) is Verdict.MET
        assert judged(ROWS[key].bar, key, 70.0, rivals, dict.fromkeys(names, near)) is Verdict.UNDECIDED
        assert judged(ROWS[key].former, key, 70.0, rivals) is Verdict.MET
        assert judged(ROWS[key].former, key, 81.0, rivals) is Verdict.MISSED


def test_a_leverage_near_zero_may_be_missed_by_two_hundredths():
    real = {"leverage": point(-0.0003)}
    for value, met in ((-0.0202, True), (-0.0287, False), (0.0195, True), (0.0205, False)):
        assert verdict(ROWS["leverage"].bar, ROWS["leverage"], real, {"leverage": point(value)}, {}) is Verdict.of(met)
    # The former bar took any size of the right sign.
    assert judged(half_leverage(), "leverage", -9.0, {}) is judged(ROWS["leverage"].former, "leverage", -9.0, {})
    assert judged(half_leverage(), "leverage", -9.0, {}) is Verdict.MET


def test_lines_of_earlier_tables_are_counted_by_their_bars():
    """Thirty-six of them had a bar; those of whole bars are not among them."""
    earlier = [row for row in rows() if row.earlier]
    assert len([row for row in earlier if row.bar]) == 36
    assert [row.key for row in rows() if row.former] == ["crps", "energy_score", "leverage"]
    assert len([row for row in rows() if row.bar]) == 36 + 10
    assert {row.key for row in rows() if not row.earlier} >= {"drift", "zero_gaps", "panel_bars_gru_score"}


def test_undecided_counts_as_not_met():
    told = [Verdict.MET, Verdict.UNDECIDED, None, Verdict.MISSED, Verdict.MET, None]
    assert count(told) == (2, 1, 4)


def test_who_sees_the_test_is_marked():
    assert heading("bootstrap, last 250 days") == "bootstrap, last 250 days †" and heading("bootstrap") == "bootstrap"
    models = {"neural": {}, "bootstrap, last 250 days": {}}
    assert cells([ROWS["skew"]], {}, models, judged="neural")[0][-1] == "bootstrap, last 250 days †"
    differences = {"crps": {"bootstrap, last 250 days": Interval(-1.0, -2.0, 0.5)}}
    headings, lines = difference_cells(differences)
    assert headings == ["score", "bootstrap, last 250 days †"]
    assert lines == [["CRPS, 1 day, 1e-4", "-1.000 [-2.000, 0.500]"]]
    line = cells([ROWS["crps"]], {}, {"neural": {"crps": point(1.0)}, "FHS": {"crps": point(2.0)}}, "neural",
                 differences={"crps": {"FHS": Interval(-1.0, -2.0, 0.5)}})[1][0]  # fmt: skip
    assert line[4:6] == ["surely below FHS", "undecided"]


def test_cells_and_markdown():
    real = {"skew": Interval(-0.356, -0.5, -0.2)}
    models = {"neural": {"skew": point(-0.3)}, "FHS": {"skew": point(NAN)}}
    headings, lines = cells([ROWS["skew"], ROWS["volatility_ratio"]], real, models, judged="neural")
    assert headings == ["figure", "better", "real", "neural", "good", "met", "FHS"]
    assert lines[0] == ["skew", "≈", "-0.36 [-0.50, -0.20]", "-0.30", "", "", "–"]
    assert lines[1] == ["volatility ratio", "≈", "1.000", "–", "0.92 to 1.08", "–", "–"]
    assert cells([ROWS["skew"]], real, models, intervals=False)[1][0][2] == "-0.36"
    assert markdown(["a", "b", "c"], [["|r|", "", "1"]]) == "| a | b | c |\n| --- | --- | ---: |\n| \\|r\\| |  | 1 |"
