import numpy as np
import pytest

from vecenv.market.state_indicators import LABELS, labels_of
from vecenv.tasks.tiers.render import LabelTable, label_places
from vecenv.text.money import amounts, money
from vecenv.text.tables import NumberTable

TIES = np.arange(-4_000, 4_000) / 16
"""Exact in binary; among them are ties of tenths and of hundredths, like 0.25 and 0.125."""


def near(numbers):
    """Return the numbers with the closest ones on both sides, in both precisions."""
    single = numbers.astype(np.float32)
    below, above = (np.nextafter(single, np.float32(side)) for side in (-np.inf, np.inf))
    doubles = np.nextafter(numbers, -np.inf), numbers, np.nextafter(numbers, np.inf)
    return np.concatenate([*doubles, below.astype(float), single.astype(float), above.astype(float)])


@pytest.mark.parametrize(("form", "scale", "parts"), [("{:z,.0f}", 1, 1), ("{:+z.1f}%", 100, 10), ("{:z.1f}", 1, 10)])
def test_numbers_are_those_of_format(form, scale, parts):
    steps = np.arange(-1_200, 1_200) / (2 * parts * scale)
    numbers = np.concatenate([near(TIES / scale), near(steps), np.random.default_rng(0).normal(0, 60, 5_000) / scale])
    table, texts = NumberTable(form, -100, 100, scale, parts), [form.format(number * scale) for number in numbers]
    assert table(numbers) == texts and table(numbers[:9]) == texts[:9]


def test_amounts_are_those_of_money():
    hundredths = np.arange(0, 202_000, 9) / 200
    limits = np.array([0, 999.994, 999.995, 999.996, 1e4 - 0.5, 1e4, 123_456.5, 1e9])
    numbers = np.abs(np.concatenate([near(TIES), near(hundredths), near(limits)]))
    for some in (numbers, numbers[:9]):
        shown = [first + rest for first, rest in zip(*amounts(some), strict=True)]
        assert shown == [money("", x) for x in some.tolist()]


def test_labels_are_those_of_each_number():
    rng = np.random.default_rng(1)
    numbers = {name: rng.choice(list(words), 500).astype(float) for name, words in LABELS.items()}
    numbers |= {"rsi_14": rng.uniform(0, 100, 500), "momentum_10": near(np.array([-0.01, 0.01])).repeat(42)[:500]}
    numbers["volume_ratio_20"] = near(np.array([0.8, 1.2])).repeat(42)[:500]
    places = label_places(numbers)
    for name, values in numbers.items():
        words = LabelTable((name,), lambda codes: ", ".join(LABELS[name][code] for name, code in codes.items()))
        assert words(places) == labels_of(name, values).tolist()
    both = LabelTable(("candle", "gap_state"), lambda codes: f"{codes['gap_state']} {codes['candle']}")(places)
    pairs = zip(numbers["gap_state"], numbers["candle"], strict=True)
    assert both == [f"{gap:.0f} {candle:.0f}" for gap, candle in pairs]
    for name, value in (("macd_state", 0.0), ("candle", 5.5), ("candle", 9.0), ("gap_state", -2.0), ("rsi_14", np.nan)):
        numbers = {feature: np.full(3, list(words)[-1], float) for feature, words in LABELS.items()}
        label_places(numbers)
        numbers[name][1] = value
        with pytest.raises(ValueError, match=f"{name} cannot be {value}"):
            label_places(numbers)
