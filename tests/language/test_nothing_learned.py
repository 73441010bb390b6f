"""A training whose groups all earn the same says so after its first update, and what helps."""

import json
from dataclasses import replace

import pytest

from tests.language.tiny import ALONE, small_chat, small_model
from vecenv.language.grpo import LanguageGRPO
from vecenv.language.models import save_model
from vecenv.learn.group_episodes import EpisodeReward
from vecenv.registry import make_spoken
from vecenv.tasks.commands.cli import main
from vecenv.tasks.experiment.language_training import collapsed, nothing_learned


def test_a_run_of_invalid_answers_says_so_once(tmp_path, capsys):
    save_model(*small_model(), tmp_path / "model")
    rows = ("--num-groups", "2", "--group-size", "4", "--learner.minibatches", "1", "--learner.total-frames", "16")
    words = ("--learner.answer-tokens", "4", "--env.max-steps", "1", "--episodes", "2", "--no-compile")
    train = ["train", "--task", "race", "--algorithm", "grpo", "--model", str(tmp_path / "model"), *rows, *words]
    assert main([*train, "--device", "cpu", "--folder", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert out.count("Nothing was learned: the episodes of each group earned the same") == 1
    assert "100% of the answers were invalid: let the model imitate valid ones first (vecenv collect, then" in out
    # Said below the first of two updates.
    shares = " · 100% of answers invalid · 100% of groups without spread · after "
    assert out.count(shares) == 2 and "Warning   In the last quarter of the updates 100% of the groups had no" in out
    # Beside the model before, with what both said.
    told = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert list(told["evaluation"]["agents"])[:2] == ["trained", "initial"]
    assert "initial" in [verdict["benchmark"] for verdict in told["verdicts"]]
    for name in ("conversations", "conversations_initial"):
        assert len((tmp_path / "run" / f"{name}.jsonl").read_text().splitlines()) == 2
    assert len((tmp_path / "run" / "metrics.csv").read_text().splitlines()) == 3
    assert out.index("Training   50%") < out.index("Nothing was learned") < out.index("Training  100%")


@pytest.mark.parametrize("variant", ["grpo", "dapo"])
def test_what_is_credited_and_invalid_is_measured(variant, monkeypatch):
    """Where groups are drawn anew, none of those without spread is left; the share of invalid answers is of all."""
    worth, refills = EpisodeReward(grade=0.0, steps=1.0, invalid=0.5), {"refills": 0} if variant == "dapo" else {}
    config = replace(ALONE, variant=variant, minibatches=1, reward=worth, **refills)
    env = make_spoken("race", 8, compile=False, seed=1, max_steps=1, paid="partial")
    one = LanguageGRPO(env, small_model()[0], small_chat(), config, 4)
    silent = one.update()
    assert (silent["credited"], silent["invalid_answers"], silent["no_spread"]) == (0.0, 1.0, 1.0)
    # Of the episodes that are learned from, of which dapo has none.
    assert silent["invalid"] == (0.0 if variant == "dapo" else 1.0)
    assert (silent["share/invalid"], silent["episode_reward"]) == (1.0, -0.5)
    assert "100% of the answers were invalid" in nothing_learned(silent)
    # The moves of the second group are not paid alike.
    texts = one.chat.texts
    monkeypatch.setattr(one.chat, "texts", lambda answers: [*texts(answers)[:4], "Up", "Down", "Left", "Right"])
    moved = one.update()
    assert (moved["credited"], moved["no_spread"]) == (1.0 if variant == "dapo" else 0.5, 0.5)
    assert moved["invalid"] == (0.0 if variant == "dapo" else 0.5)
    assert moved["invalid_answers"] == 0.5 and nothing_learned(moved) is None


def test_what_helps_is_what_lacks():
    alike = {"credited": 0.0, "invalid_answers": 0.125, "cut_off": 0.25}
    told = nothing_learned(alike)
    assert "12% of the answers were invalid: raise --learner.temperature or --group-size" in told
    assert "--learner.answer-tokens" not in told
    assert nothing_learned(alike | {"cut_off": 0.75}).endswith("; 75% were cut off: raise --learner.answer-tokens")
    assert "vecenv sft" in nothing_learned(alike | {"invalid_answers": 0.5})
    assert nothing_learned(alike | {"failed": 1.0}) == "Nothing was learned: the world failed in every episode"
    # An update that learned from a single step, and one of a policy, which credits every step.
    assert nothing_learned(alike | {"credited": 0.01}) is None and nothing_learned({"cut_off": 1.0}) is None


def test_a_run_that_has_collapsed_says_so_at_its_end():
    """By the means of the last quarter of its updates, here of two of eight."""
    good = {"invalid_answers": 0.0, "cut_off": 0.0, "no_spread": 0.25, "share/invalid": 0.25, "grade": 0.5}

    def told(*last: dict[str, float]) -> str | None:
        return collapsed([good | {"no_spread": 1.0}] * 6 + [good | row for row in last])

    alike = {"no_spread": 0.95}
    assert "95% of the groups had no spread, at a mean grade of 0.50: nearly nothing was learned. 0% of" in told(
        *[alike] * 2
    )
    assert told(alike, {}) is None and told({}, {}) is None
    assert told(*[alike | {"grade": 1.0}] * 2).endswith("95% of the groups had no spread, at a mean grade of 1.00")
    silent = {"share/invalid": 1.0, "invalid_answers": 1.0, "no_spread": 1.0}
    assert "100% of the reward was the format penalty alone. 100% of the answers were invalid: let" in told(
        *[silent] * 2
    )
    assert collapsed([good | silent]) is None and collapsed([{"no_spread": 1.0}] * 8) is None
