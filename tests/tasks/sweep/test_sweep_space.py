"""What a sweep's file may say, checked before any work, and what the best of many trials owes to luck."""

import sys

import pytest
import torch
import yaml

from vecenv.learn.intervals import expected_maximum
from vecenv.system.preset_files import as_values
from vecenv.tasks.commands import cli
from vecenv.tasks.experiment.settings import train_settings
from vecenv.tasks.sweep.luck import deflated
from vecenv.tasks.sweep.space import Range, SweepSettings, read_sweep

FILE = {"task": "race", "validation_fraction": 0.2, "compile": False, "learner": {"minibatches": 8}}
RATE = {"learner.learning_rate": {"low": "1e-4", "high": "1e-2", "log": True}}


def sweep_of(place, varies, **changes):
    (place / "file.yaml").write_text(yaml.safe_dump(FILE | changes | {"varies": varies}))
    return read_sweep(SweepSettings(file=place / "file.yaml"))


def test_trials_have_the_settings_of_the_file_with_the_values_of_what_varies(tmp_path):
    varies = RATE | {"learner.num_steps": {"choices": [10, 20]}, "learner.hidden": {"choices": [[8], [4, 4]]}}
    sweep = sweep_of(tmp_path, varies | {"num_envs": {"low": 32, "high": 64}}, seeds=2)
    assert sweep.space["learner.learning_rate"] == Range(1e-4, 1e-2, log=True)
    assert sweep.space["num_envs"] == Range(32, 64, log=False) and type(sweep.space["num_envs"].low) is int
    chosen = {"learner.learning_rate": 2e-3, "learner.num_steps": 20, "learner.hidden": "[4, 4]", "num_envs": 40}
    own = as_values(train_settings(**sweep.given(chosen)))
    assert (own["learner"]["learning_rate"], own["learner"]["num_steps"], own["num_envs"]) == (2e-3, 20, 40)
    assert tuple(own["learner"]["hidden"]) == (4, 4) and own["learner"]["minibatches"] == 8 and own["seeds"] == 2
    assert sweep.chosen(chosen)["learner.hidden"] == [4, 4]


@pytest.mark.parametrize(
    ("varies", "changes", "told"),
    [
        (None, {}, "varies: the options that vary are needed"),
        ({"learner.learning_rat": RATE["learner.learning_rate"]}, {}, "learning_rat (did you mean learning_rate?)"),
        ({"env.nothing": {"choices": [1, 2]}}, {}, "unknown settings nothing"),
        ({"learner.learning_rate": {"low": -1, "high": 1}}, {}, "learning_rate must be positive, got -1.0"),
        ({"learner.learning_rate": {"low": 0.1, "high": 0.01}}, {}, "low and high must be numbers, the first one sm"),
        ({"learner.clip": {"low": 0.0, "high": 0.1, "log": True}}, {}, "learner.clip"),
        ({"learner.learning_rate": {"low": 0.1, "hgh": 0.2}}, {}, "unknown entries hgh (did you mean high?)"),
        ({"learner.learning_rate": {"low": 0.1}}, {}, "learner.learning_rate: high of the range"),
        ({"learner.learning_rate": {"choices": [0.1, 0.1]}}, {}, "two different choices or more"),
        ({"learner.learning_rate": 0.1}, {}, "low and high, or choices, are needed by name"),
        (RATE | {"learner.minibatches": {"choices": [8, 7]}}, {}, "cannot be split into 7 equal minibatches"),
        (RATE | {"env.max_steps": {"low": 20, "high": 30}}, {}, "varies: env.max_steps: trials could not be compared"),
        (RATE | {"validation_episodes": {"choices": [8, 9]}}, {}, "validation_episodes: trials could not be"),
        (RATE, {"validation_fraction": 0.0}, "set a validation_fraction above 0"),
        (RATE, {"ensemble": 2}, "ensemble: a trial is pruned"),
        (RATE, {"folder": "runs/x"}, "folder: trials have folders of their own"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_before_any_work(varies, changes, told, tmp_path):
    with pytest.raises(ValueError) as error:
        sweep_of(tmp_path, varies, **changes)
    assert str(error.value).startswith(f"{tmp_path / 'file.yaml'}: ") and told in str(error.value)


def test_too_many_processes_and_a_missing_optuna_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.yaml").write_text(yaml.safe_dump(FILE | {"varies": RATE}))
    assert cli.main(["sweep", "file.yaml", "--processes", "5"]) == cli.BAD_INPUT
    assert "5 processes need a --delay of at least 5, got 4" in " ".join(capsys.readouterr().err.split())
    for name in ("run", "study"):
        monkeypatch.delitem(sys.modules, f"vecenv.tasks.sweep.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert cli.main(["sweep", "file.yaml"]) == cli.BAD_INPUT
    assert "pip install 'vecenv[sweep]'" in capsys.readouterr().err and not (tmp_path / "runs").exists()


def test_on_pure_noise_the_deflated_winner_is_not_above_nothing_and_a_better_one_is():
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randn(1000, 300, dtype=torch.float64, generator=generator)
    for count in (1, 2, 5, 20, 300):
        assert expected_maximum(count) == pytest.approx(float(drawn[:, :count].amax(1).mean()), abs=0.1)
    # Of 15 trials, each the best of 20 validations with a standard error of 2, and a Sharpe ratio's of 0.5.
    trials = drawn.view(1000, 15, 20).amax(-1)
    sharpes = torch.randn(1000, 15, dtype=torch.float64, generator=generator) / 2

    def figures(better: float) -> dict[str, float]:
        found = []
        for rewards, own in zip(trials.tolist(), sharpes.tolist(), strict=True):
            value, margin = 2 * max(rewards) + better, 2 * 1.96
            winner = {"reward": value, "reward_low": value - margin, "reward_high": value + margin}
            told = deflated([winner | {"sharpe": max(own) + better}], own, 15 * 20)
            found.append([told[name]["deflated"] for name in ("reward", "sharpe_above_trials")])
        return dict(zip(("reward", "sharpe"), torch.tensor(found).mean(0).tolist(), strict=True))

    noise, better = figures(0.0), figures(4.0)
    assert noise["reward"] == pytest.approx(0.0, abs=0.15) and noise["sharpe"] < 0
    assert better["reward"] > 3.8 and better["sharpe"] > 3.0
