"""DQN resumes bit for bit, and what it cannot learn or resume is refused."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torchrl.data import Bounded, Categorical, MultiCategorical

import vecenv
from tests.learn.chain_task import SMALL, VARIANTS, chain_env, same
from vecenv.learn.dqn import CHECKPOINT, DQN, check_one_choice, train
from vecenv.learn.initial_policy import start_from
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.runs import load_run
from vecenv.registry import task_named


def tensors_of(path: Path) -> list[Tensor]:
    state = torch.load(path / CHECKPOINT, weights_only=True)
    kept = state["replay"]["storage"]["_storage"]
    lists = (state[name] for name in ("actor", "critic", "moments", "target"))
    return [*(tensor for one in lists for tensor in one), *kept.values(), *state["environment"]["rows"]]


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_interrupted_run_resumes_bit_for_bit(tmp_path: Path, variant: str) -> None:
    config = replace(SMALL, **VARIANTS[variant])
    whole = train(chain_env(), config, tmp_path / "whole")

    def interrupt(metrics: dict[str, float]) -> None:
        if metrics["update"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(chain_env(), config, tmp_path / "parts", on_update=interrupt)
    resumed = train(chain_env(seed=9), config, tmp_path / "parts", resume=True)
    assert [metrics["update"] for metrics in resumed.metrics] == [4]
    assert same(tensors_of(tmp_path / "whole"), tensors_of(tmp_path / "parts"))
    assert resumed.metrics[-1]["td_loss"] == whole.metrics[-1]["td_loss"]
    with (tmp_path / "parts" / "metrics.csv").open(newline="") as file:
        assert [row["update"] for row in csv.DictReader(file)] == ["1", "2", "3", "4"]


def test_an_interruption_in_mid_update_leaves_the_update_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = DQN.learn

    def interrupted(self: DQN) -> dict[str, float]:
        metrics = learn(self)
        if self.update_number == 2:
            raise KeyboardInterrupt
        return metrics

    monkeypatch.setattr(DQN, "learn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(chain_env(), SMALL, tmp_path / "parts")
    monkeypatch.undo()
    train(chain_env(), SMALL, tmp_path / "parts", resume=True)
    train(chain_env(), SMALL, tmp_path / "whole")
    assert same(tensors_of(tmp_path / "whole"), tensors_of(tmp_path / "parts"))


def test_a_run_of_another_variant_or_buffer_is_not_resumed(tmp_path: Path) -> None:
    train(chain_env(), SMALL, tmp_path)
    for change, told in (({"double": True}, "other double"), ({"buffer_size": 300}, "other buffer_size")):
        with pytest.raises(ValueError, match=told):
            load_run(DQN(chain_env(), replace(SMALL, **change)), tmp_path / CHECKPOINT)


def test_a_state_of_another_form_is_refused_and_nothing_of_it_loaded() -> None:
    learner = DQN(chain_env(), SMALL)
    learner.update()
    before = [tensor.clone() for tensor in learner.parameters]
    for fault, told in (
        (lambda state: state["target"].pop(), "its state.target has 3 entries instead of 4"),
        (lambda state: state["replay"]["writer"].pop("_cursor"), "its state.replay.writer lacks _cursor"),
        (lambda state: state.pop("replay"), "its state lacks replay"),
    ):
        state = DQN(chain_env(seed=2), SMALL).state_dict()
        fault(state)
        with pytest.raises(ValueError, match=told.replace(".", r"\.")):
            learner.load_state_dict(state)
        assert same(before, learner.parameters) and learner.update_number == 1


@pytest.mark.assembly
def test_equal_seeds_learn_equally_and_others_do_not() -> None:
    first, again, other = (train(chain_env(), replace(SMALL, seed=seed)).learner for seed in (1, 1, 2))
    assert same(first.parameters, again.parameters) and not same(first.parameters, other.parameters)


@pytest.mark.nightly
@pytest.mark.parametrize("variant", VARIANTS)
def test_compiled_learning_equals_eager(variant: str) -> None:
    eager, compiled = (train(chain_env(compiled=flag), replace(SMALL, **VARIANTS[variant])).learner for flag in (0, 1))
    for one, other in zip(eager.parameters, compiled.parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (MultiCategorical([3]), r"MultiCategorical of shape \(1,\)"),
        (Categorical(3, (2,)), r"Categorical of shape \(2,\)"),
        (Bounded(-1.0, 1.0, (1,)), r"BoundedContinuous of shape \(1,\)"),
    ],
)
def test_only_single_choices_are_learned(spec: object, told: str) -> None:
    with pytest.raises(ValueError, match=rf"DQN learns .* an action of 'any' here is {told}"):
        check_one_choice(spec, "any")
    for fitting in (Categorical(3), Categorical(3, (1,))):
        check_one_choice(fitting, "any")


@pytest.mark.parametrize(
    ("task", "actions"),
    [("crypto_lob", ("target", "step", "continuous", "limit")), ("agent_market", ("discrete", "continuous", "limit"))],
)
def test_tasks_tell_which_of_their_actions_are_single_choices(task: str, actions: tuple[str, ...]) -> None:
    record, told = task_named(task), []
    rules = {"synthetic_hours": 1.0, "episode_steps": 50} if task == "crypto_lob" else {}
    for action in actions:
        config = replace(record.config(), action=action, **rules)
        try:
            check_one_choice(record.build(config=config).action_spec, task)
            told.append(action)
        except ValueError:
            pass
        assert record.one_choice(config) == (action in told)
    assert told


def test_an_environment_without_a_single_choice_is_refused() -> None:
    env = vecenv.make("crypto_lob", 2, compile=False, synthetic_hours=1.0, episode_steps=50, action="limit")
    with pytest.raises(ValueError, match="an action of 'crypto_lob' here is MultiCategorical"):
        DQN(env, SMALL)


@pytest.mark.parametrize(
    "change",
    [
        {"gamma": 1.2}, {"buffer_size": 0}, {"target_rate": 0.0}, {"target_every": 0}, {"epsilon_start": -0.1},
        {"num_steps": 0}, {"minibatch_size": 0}, {"exploration_fraction": 2.0},
    ],
)  # fmt: skip
def test_config_is_checked(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        replace(SMALL, **change)


def test_a_buffer_that_holds_no_rollout_or_exceeds_the_memory_is_refused() -> None:
    with pytest.raises(ValueError, match=r"buffer_size must be at least a rollout, num_steps 4 x num_envs 16, got 63"):
        DQN(chain_env(), replace(SMALL, buffer_size=63))
    with pytest.raises(ValueError, match="kept steps need"):
        DQN(chain_env(), replace(SMALL, buffer_size=10**13))


def test_a_run_starts_from_another_of_its_kind_only(tmp_path: Path) -> None:
    source = train(chain_env(), SMALL, tmp_path / "dqn").learner
    path = tmp_path / "dqn" / CHECKPOINT
    own = DQN(chain_env(seed=3), replace(SMALL, seed=5, double=True))
    start_from(own, path)
    assert same(own.actor, source.actor) and len(own.replay) == 0
    own.prepare()
    assert same(own.target, own.parameters)
    with pytest.raises(ValueError, match=r"gives values of choices, which .* gives advantages of choices"):
        start_from(DQN(chain_env(), replace(SMALL, duelling=True)), path)
    ppo = PPO(chain_env(), PPOConfig(num_steps=4, minibatches=1, hidden=(8,)))
    with pytest.raises(ValueError, match=r"gives values of choices, which .* gives distributions of actions"):
        start_from(ppo, path)
