"""The whole way from conversations to a model that has learned by GRPO, in a short form."""

from __future__ import annotations

import json

import pytest

from vecenv.benchmarks.learning.language_learning import LanguageLearningConfig, main

pytest.importorskip("transformers", reason="language models need vecenv[language]")


@pytest.mark.nightly
def test_grpo_lifts_the_grade_over_the_supervised_start(tmp_path):
    """By more than the 95% interval, on held-out paths, in half of the benchmark's updates."""
    config = LanguageLearningConfig(num_seeds=1, collected=192, updates=6, episodes=96, threads=1, output=tmp_path)
    result = main(config)
    assert json.loads((tmp_path / "language-learning.json").read_text()) == json.loads(json.dumps(result))
    assert (tmp_path / "language-learning.png").stat().st_size > 10_000
    (run,) = result["runs"]
    assert [update["update"] for update in run["updates"]] == [1, 2, 3, 4, 5, 6]
    grades = run["grades"]
    assert grades["lift"]["low"] > 0.05 and grades["trained"]["low"] > grades["supervised"]["high"]
    means = [grades[name]["mean"] for name in ("hold", "rule_based", "signal", "oracle")]
    assert means == sorted(means) and means[0] == 0.0
    assert run["largest"]["hold"] < 0.97 and run["largest"]["invalid"] < 0.1
