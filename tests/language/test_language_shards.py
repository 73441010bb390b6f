"""Language models that learn by shards: the same bits on any number of ranks, which go on from what others saved."""

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch

from tests.guess_number import GUESS_NUMBER, GuessNumber
from tests.language.test_conversation_grpo import SAID
from tests.language.test_language_grpo import CONFIG
from tests.language.test_supervised import day_segments
from tests.language.tiny import SMALL, signal_env, small_chat, small_model, talking_model
from vecenv import make_interaction
from vecenv.language import apart
from vecenv.language.apart import ApartGRPO
from vecenv.language.grpo import LanguageGRPO
from vecenv.language.models import chat_format, with_adapters
from vecenv.language.supervised import SupervisedConfig
from vecenv.language.supervised_checkpoint import SupervisedCheckpoint
from vecenv.language.supervised_training import fine_tune, segments_of
from vecenv.language.tiny_model import tiny_model
from vecenv.learn.checkpoints import state_digest
from vecenv.learn.group_episodes import EpisodeReward
from vecenv.learn.runs import check_same_start
from vecenv.learn.shards import as_rank, ranks
from vecenv.registry import Task
from vecenv.testing.ranks import on_ranks

SHARDS, GROUP, ROWS, DAYS, UPDATES = 4, 2, 8, 2, 2
SHARED = replace(CONFIG, shards=SHARDS, total_frames=2 * UPDATES * DAYS * ROWS, kl_coef=0.05, temperature=0.7)
# So little that it is 0: all that answer validly earn the same, and groups of them are replaced.
VALID = EpisodeReward(grade=0.0, steps=5e-324, invalid=1.0)
REFILLED = {"variant": "dapo", "refills": 2}
GROWING = replace(SHARED, **REFILLED, history_days=None, renew_reference=1, tokens_at_once=1_000, reward=VALID)
ADAPTED = replace(SHARED, lora_rank=2, epochs=2)
WORTH = EpisodeReward(grade=1.0, steps=0.5, invalid=0.1)
TALKING = replace(SHARED, **REFILLED, tools=("all",), reward=WORTH)
OF_TIME = ("samples_per_second", "rollout_share")
CALL = '{"name": "is_odd", "arguments": {}}'


pytestmark = pytest.mark.usefixtures("one_thread")


def market(config, seed=3):
    rows = ROWS // ranks().count
    env = signal_env(rows, env_ids=torch.arange(rows) + rows * ranks().number, days=DAYS)
    model, _ = talking_model()
    model = with_adapters(model, config.lora_rank, seed) if config.lora_rank else model
    return learner_here()(env, model, small_chat(), config, GROUP)


@cache
def guesser():
    model, tokenizer = tiny_model(["Guess a number from 1 to 20. Higher. Lower.", CALL], SMALL, 0)
    chat, roles = chat_format(model, tokenizer), ("user", "assistant")
    told = [
        [{"role": role, "content": text} for role, text in zip(roles, ("Guess a number.", said), strict=True)]
        for said in [*SAID, *[CALL] * 10]
    ]
    config = replace(TALKING, answer_tokens=40)
    training = SupervisedConfig(epochs=30, batch_size=10, learning_rate=1e-2, test_fraction=0.0)
    fine_tune(model, segments_of(told, chat, config), chat.pad, training)
    return model, chat


def guesses(config, task=GUESS_NUMBER):
    model, chat = copy.deepcopy(guesser())
    config = replace(config, answer_tokens=len(chat.answers([CALL])[0]))
    world = make_interaction(task, ROWS // ranks().count)
    return learner_here()(world, model, chat, config, GROUP, seed=5)


def learner_here():
    return LanguageGRPO if ranks().plays is None else ApartGRPO


def learned(count, make, config, begun=None, players=0):
    """Return the hash and the metrics of what ranks have learned, and the state after the first update.

    Of the ranks so many only play.
    """

    def trained(rank):
        learner, kept = make(config), begun
        if begun is not None:
            learner.load_state_dict(begun)
            check_same_start(learner)
        while learner.update_number < UPDATES:
            metrics = learner.update()
            kept = kept or learner.state_dict()
        told = {name: value for name, value in metrics.items() if name not in OF_TIME}
        return {"state": state_digest(learner.state_dict()), "metrics": state_digest(told)}, told, kept

    def in_sets(rank):
        with as_rank(ranks().apart(players)):
            return trained(rank)

    found = on_ranks(count, in_sets if players else trained)[: count - players]
    assert all(str(metrics) == str(found[0][1]) for _, metrics, _ in found)
    return found[0]


@pytest.mark.parametrize(
    ("make", "config"),
    [
        pytest.param(market, GROWING, marks=pytest.mark.assembly, id="full"),
        pytest.param(market, ADAPTED, marks=pytest.mark.nightly, id="adapted"),
        pytest.param(guesses, TALKING, marks=pytest.mark.assembly, id="talking"),
    ],
)
def test_any_number_of_ranks_learns_the_same_and_goes_on_from_others(make, config):
    make(config)
    whole, metrics, _ = learned(1, make, config)
    two, _, half = learned(2, make, config)
    assert two == whole == learned(4, make, config, half)[0] == learned(1, make, config, half)[0]
    assert metrics["policy_loss"] != 0 and metrics["reference_kl"] > 0
    assert metrics["refills"] > 0 or config.most_refills is None
    assert 0 < metrics["sampler_gap"] < 1e-5 and metrics["sampler_beyond"] == 0


def test_supervised_training_is_the_same_on_any_number_of_ranks_and_goes_on(tmp_path):
    segments, chat, (start, _) = day_segments(9), small_chat(), small_model()
    # The last batch of an epoch leaves a shard without any.
    config = SupervisedConfig(epochs=2, batch_size=5, learning_rate=5e-3, test_fraction=0.1, tokens_at_once=600)

    def tuned(count, name, every=0, most=None):
        checkpoint = SupervisedCheckpoint(tmp_path / name, every, {"shards": "4"})

        def stop(step, *_):
            if step == most:
                raise InterruptedError

        def trained(rank):
            model = copy.deepcopy(start)
            losses = fine_tune(model, segments, chat.pad, config, 3, stop, SHARDS, checkpoint)
            return state_digest({"weights": dict(model.named_parameters()), "losses": losses})

        return on_ranks(count, trained)

    (whole,) = tuned(1, "none")
    assert tuned(2, "none") == [whole] * 2 and tuned(4, "none") == [whole] * 4
    with pytest.raises(InterruptedError):
        tuned(2, "two", every=3, most=3)
    for count in (1, 4):
        assert tuned(count, "two") == [whole] * count
    with pytest.raises(ValueError, match=r"two is of a training with other shards \(4, not 2\)$"):
        SupervisedCheckpoint(tmp_path / "two", 0, {"shards": "2"}).load(*[None] * 2)


@pytest.mark.parametrize(
    ("make", "config", "learners", "players"),
    [
        pytest.param(market, GROWING, 1, 2, marks=pytest.mark.nightly, id="full"),
        pytest.param(market, ADAPTED, 2, 1, marks=pytest.mark.assembly, id="adapted"),
        pytest.param(guesses, TALKING, 2, 4, marks=pytest.mark.nightly, id="talking"),
    ],
)
def test_ranks_that_only_play_change_nothing(make, config, learners, players):
    make(config)
    whole, _, _ = learned(1, make, config)
    apart, metrics, half = learned(learners + players, make, config, players=players)
    assert apart == whole == learned(2, make, config, half)[0]
    assert learned(2, make, config, learned(1, make, config)[2], players=1)[0] == whole
    assert metrics["sampler_beyond"] == 0


def test_what_a_player_does_not_take_is_seen(monkeypatch):
    """Weights of another update, of other names, or that were never written."""
    market(ADAPTED)
    right = learned(2, market, ADAPTED)[0]
    with monkeypatch.context() as patch:
        patch.setattr(apart, "_fill", lambda *_: None)
        assert learned(2, market, ADAPTED, players=1)[0] != right
    with monkeypatch.context() as patch:
        whole = apart.send_weights

        def late(learner):
            whole(learner)
            learner.version -= learner.plays

        patch.setattr(apart, "send_weights", late)
        with pytest.raises(ValueError, match=r"^shard 0 was played with the weights of update -1, not 0$"):
            learned(2, market, ADAPTED, players=1)

    def other_adapters(config):
        return market(replace(config, lora_rank=2 + bool(ranks().plays)))

    with pytest.raises(ValueError, match=r"^rank 1 has another model than rank 0: "):
        learned(2, other_adapters, ADAPTED, players=1)


class Settling(GuessNumber):
    """A world that is told of all episodes of a rollout."""

    def settled(self, ids, turns):
        return turns


def test_what_shards_cannot_share_is_refused():
    with pytest.raises(ValueError, match=r"^Settling counts the episodes of a rollout together \(settled\), which "):
        guesses(TALKING, Task(name="settling", version="1", interaction=Settling))
    with pytest.raises(ValueError, match=r"^4 groups cannot be split into 3 equal shards"):
        guesses(replace(TALKING, shards=3, minibatches=1))
    with pytest.raises(ValueError, match=r"^groups needs shards 1, got 4: "):
        replace(SHARED, groups=2)

    market(replace(ADAPTED, shards=1))

    def other_weights(rank):
        return market(ADAPTED, seed=rank)

    with pytest.raises(ValueError, match=r"^rank 1 has another model than rank 0: "):
        on_ranks(2, other_weights)
