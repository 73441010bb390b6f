"""The benchmark of scoring news measures different texts of the lengths that it names."""

from __future__ import annotations

import json

import pytest

from vecenv.benchmarks.throughput.news_scoring import NewsScoringConfig, main, news_texts


def test_figures_are_printed_and_written(tmp_path, capsys):
    result = main(NewsScoringConfig(texts=50, words=(12, 60), repeats=1, out=tmp_path))
    (path,) = tmp_path.glob("news-scoring-*.json")
    assert json.loads(path.read_text())["lengths"] == result["lengths"]
    short, long = result["lengths"]
    assert 12 <= short["words"] < 20 < 60 <= long["words"] < 68
    assert short["distinct"] == long["distinct"] == 50 and short["known_share"] > 0.5
    assert f"50 texts of {short['words']:.0f} words: {short['texts_per_second']:,.0f}" in capsys.readouterr().out


def test_texts_differ_and_are_drawn_by_a_seed():
    assert news_texts(300, 12) == news_texts(300, 12) != news_texts(300, 12, seed=1)
    assert len(set(news_texts(300, 60))) == 300


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ({"texts": 0}, "texts must be at least 1, got 0"),
        ({"words": ()}, "words must"),
        ({"repeats": 0}, "repeats must"),
    ],
)
def test_nothing_to_measure_is_refused(setting, what):
    with pytest.raises(ValueError, match=what):
        NewsScoringConfig(**setting)
