"""The whole way from hindsight's conversations to a model that learned from the market's feedback, in a short form."""

from __future__ import annotations

import json

import pytest

from vecenv.benchmarks.learning.news_language import NewsLanguageConfig, main

pytest.importorskip("transformers", reason="language models need vecenv[language]")


@pytest.mark.nightly
def test_the_model_learns_to_rate_news_and_nothing_of_shuffled_news(tmp_path):
    """After a third of the benchmark's updates it tells more than its start, and more than half of the attainable."""
    config = NewsLanguageConfig(num_seeds=1, first_seed=200, updates=6, episodes=96, output=tmp_path)
    result = main(config)
    assert json.loads((tmp_path / "news-language.json").read_text()) == json.loads(json.dumps(result))
    assert (tmp_path / "news-language.png").stat().st_size > 10_000
    news, shuffled = result["runs"]
    told = {name: interval["rank_ic"] for name, interval in news["information"].items()}
    assert told["untrained"]["mean"] == 0.0 < told["supervised"]["low"]
    assert told["supervised"]["high"] < told["learned"]["mean"] < told["reader"]["high"]
    assert news["information"]["learned"]["attained"]["low"] > 0.5
    assert told["reader"]["mean"] < told["filter"]["mean"] < told["hindsight"]["mean"]
    for name in ("supervised", "learned"):
        interval = shuffled["information"][name]["rank_ic"]
        assert interval["low"] < 0.02 and abs(interval["mean"]) < 0.06
    interval = news["on_shuffled_news"]["learned"]["rank_ic"]
    assert interval["low"] < 0.02 and abs(interval["mean"]) < 0.06
    assert news["most_invalid"] < 0.1
