"""PPO's runs resume bit for bit, and their checkpoints and logs are those of the run."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import vecenv
from tests.learn.guess_task import guess_env
from tests.learn.planted_env import RULES, SMALL, episode_returns, planted_env
from vecenv.learn.ppo import CHECKPOINT, PPO, load_policy, train
from vecenv.market.planted import planted_bars
from vecenv.market.tape import MarketTape


def parameters_of(path: Path) -> list[Tensor]:
    state = torch.load(path / CHECKPOINT, weights_only=True)
    return [*state["actor"], *state["critic"], *state["moments"], *state["environment"]["rows"]]


@pytest.mark.assembly
def test_an_interrupted_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole = train(planted_env(), SMALL, tmp_path / "whole")

    def interrupt(metrics: dict[str, float]) -> None:
        if metrics["update"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(planted_env(), SMALL, tmp_path / "parts", on_update=interrupt)
    resumed = train(planted_env(seed=9), SMALL, tmp_path / "parts", resume=True)
    assert [metrics["update"] for metrics in resumed.metrics] == [3, 4]
    pairs = zip(parameters_of(tmp_path / "whole"), parameters_of(tmp_path / "parts"), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert resumed.metrics[-1]["policy_loss"] == whole.metrics[-1]["policy_loss"]
    with (tmp_path / "parts" / "metrics.csv").open(newline="") as file:
        assert [row["update"] for row in csv.DictReader(file)] == ["1", "2", "3", "4"]


@pytest.mark.assembly
def test_an_interruption_in_mid_update_leaves_the_update_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = PPO.learn

    def interrupted(self: PPO, *arguments: object) -> dict[str, float]:
        metrics = learn(self, *arguments)
        if self.update_number == 2:
            raise KeyboardInterrupt
        return metrics

    monkeypatch.setattr(PPO, "learn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(planted_env(), SMALL, tmp_path / "parts")
    monkeypatch.undo()
    train(planted_env(), SMALL, tmp_path / "parts", resume=True)
    train(planted_env(), SMALL, tmp_path / "whole")
    pairs = zip(parameters_of(tmp_path / "whole"), parameters_of(tmp_path / "parts"), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.assembly
def test_resume_refuses_what_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        train(planted_env(), SMALL, tmp_path, resume=True)
    assert not list(tmp_path.iterdir())
    train(planted_env(), SMALL, tmp_path)
    with pytest.raises(ValueError, match="other gamma"):
        train(planted_env(), replace(SMALL, gamma=0.5), tmp_path, resume=True)
    with pytest.raises(ValueError, match="another market"):
        train(planted_env(market_seed=3), SMALL, tmp_path, resume=True)
    with pytest.raises(ValueError, match="folder"):
        train(planted_env(), SMALL, resume=True)


@pytest.mark.assembly
def test_load_policy_acts_as_the_trained_one(tmp_path: Path) -> None:
    trained = train(planted_env(), SMALL, tmp_path)
    expected = episode_returns(planted_env(market_seed=1), trained.policy())
    loaded = load_policy(tmp_path / CHECKPOINT, planted_env(market_seed=1))
    assert torch.equal(episode_returns(planted_env(market_seed=1), loaded), expected)
    with pytest.raises(ValueError, match="not for"):
        load_policy(tmp_path / CHECKPOINT, guess_env(2))
    tape = MarketTape.from_bars(planted_bars(2, 60, 3), features=("signal",))
    with pytest.raises(ValueError, match="other sizes"):
        load_policy(tmp_path / CHECKPOINT, vecenv.make("stock_trading", 2, market=tape, **RULES))


@pytest.mark.assembly
def test_tensorboard_is_written_when_asked(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(planted_env(), replace(SMALL, tensorboard=True), tmp_path)
    assert list(tmp_path.glob("events.out.tfevents.*"))
