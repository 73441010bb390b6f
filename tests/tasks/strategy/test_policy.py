"""The policy over tokens writes programs of the language, and learns what they are worth."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.tasks.strategy.test_search import WORDS
from vecenv.learn.runs import read_metrics, run
from vecenv.programs.expressions import Feature, Vocabulary
from vecenv.programs.parsing import DEEPEST
from vecenv.programs.printing import printed
from vecenv.programs.units import BARS, MONEY, NONE, PRICE, RETURN, WEALTH
from vecenv.tasks.commands import cli
from vecenv.tasks.experiment import plan
from vecenv.tasks.experiment.settings import train_settings
from vecenv.tasks.strategy.config import StrategyConfig
from vecenv.tasks.strategy.learning import ALGORITHM, TokensConfig
from vecenv.tasks.strategy.policy import TokenPolicy, grammar
from vecenv.tasks.strategy.scene import StrategyWriting
from vecenv.tasks.strategy.search import drawn_programs
from vecenv.tasks.strategy.token_learner import TokenLearner, trained_author

FEATURES = {
    "close": Feature(PRICE), "move": Feature(RETURN), "signal": Feature(NONE), "cash": Feature(MONEY, account=True),
    "held": Feature(WEALTH, account=True), "bars_left": Feature(BARS, account=True),
}  # fmt: skip


def test_every_production_is_of_the_language_and_programs_end():
    policy = TokenPolicy(Vocabulary(FEATURES, outputs={"weight": WEALTH}), 0)
    names = {token.text for token in grammar(policy.vocabulary)}
    assert {"close", "plain(move)", "plain(signal)", "plain(held)"} <= names
    assert not any("cash" in text or "bars_left" in text for text in names)
    with torch.no_grad():
        written = [policy.write(256) for _ in range(4)]
    used = set()
    for each in written:
        lengths = (each.tokens >= 0).sum(1)
        assert int(lengths.max()) <= policy.longest == 20 and bool((each.entropy >= 0).all())
        assert len(policy.programs(each.tokens)) == 256
        used |= set(each.tokens.unique().tolist())
    assert used == {-1, *range(len(policy.tokens))}


def test_probabilities_are_those_of_the_tokens():
    policy = TokenPolicy(WORDS, 1)
    with torch.no_grad():
        written = policy.write(20_000)
    texts = [printed(program) for program in policy.programs(written.tokens)]
    for text in ("weight = 0\n", "weight = plain(x)\n"):
        places = [place for place, other in enumerate(texts) if other == text]
        known = {tuple(written.tokens[place].tolist()): float(written.log_prob[place].exp()) for place in places}
        wanted = len(texts) * sum(known.values())
        assert len(places) == pytest.approx(wanted, abs=4 * wanted**0.5)


def test_what_a_vocabulary_has_no_words_for_is_left_out():
    of_numbers = Vocabulary({"move": Feature(RETURN)}, outputs={"weight": WEALTH})
    assert not [token for token in grammar(of_numbers) if "price" in (token.sort, *token.operands)]
    with torch.no_grad():
        policy = TokenPolicy(of_numbers, 0)
        texts = {printed(program) for program in policy.programs(policy.write(500).tokens)}
    assert len(texts) > 100 and any("plain(move)" in text for text in texts)


def signs(programs):
    """Return what programs are worth here: the more signs they take, up to three."""
    return torch.tensor([min(printed(program).count("sign("), 3) / 3 for program in programs], dtype=torch.float64)


class Signs(StrategyWriting):
    """Stands for the world of strategies: its programs of `WORDS` are worth their `signs`."""

    def __init__(self, **config):
        self.num_rows, self.vocabulary = 32, WORDS
        self.config, self.asked = StrategyConfig(**config), []

    def grades(self, episode, programs, most=None):
        self.asked.append(episode.index)
        grade = signs(programs)
        return SimpleNamespace(mean=grade, standard_error=torch.full_like(grade, 0.25))

    def held_out_grades(self, episode, programs):
        found = self.grades(episode, programs)
        return SimpleNamespace(mean=found.mean - 0.01, standard_error=found.standard_error)

    def metadata(self):
        return {"task": "signs"}


def test_it_learns_and_again_the_same_also_when_resumed(tmp_path):
    config = TokensConfig(total_frames=24 * 32, learning_rate=1e-2)
    learner = TokenLearner(Signs(), config)
    metrics = run(learner)
    means = [row["batch_mean"] for row in metrics]
    assert sum(means[-4:]) > sum(means[:4]) + 1.0 and len(means) == 24
    assert metrics[-1]["shown"] > max(means[:4]) and metrics[-1]["frames"] == 24 * 32
    assert metrics[-1]["overfit_gap"] == pytest.approx(0.01)
    assert metrics[-1]["grade_high"] - metrics[-1]["grade"] == pytest.approx(1.96 * 0.25)
    # A batch and the grades of the most probable program are of one episode, and the next batch's of another.
    assert learner.world.asked[:6] == [0, 0, 0, 1, 1, 1]
    run(TokenLearner(Signs(), replace(config, total_frames=20 * 32)), tmp_path)
    again = TokenLearner(Signs(), config)
    rest, told = run(again, tmp_path, resume=True), ("batch_mean", "loss", "grade")
    assert [[row[name] for name in told] for row in rest] == [[row[name] for name in told] for row in metrics[20:]]
    author = trained_author([tmp_path / "checkpoint.pt"], None, Signs())
    said = {name: agent.answer(Signs(), [0], [""]) for name, agent in learner.agents().items()}
    assert author.answer(Signs(), [0], [""]) == said["trained"] != said["untrained"]
    other = Signs()
    other.vocabulary = Vocabulary(FEATURES, outputs={"weight": WEALTH})
    with pytest.raises(ValueError, match="programs of other names"):
        trained_author([tmp_path / "checkpoint.pt"], None, other)


def test_the_best_of_as_many_is_graded_as_the_training_is():
    world = Signs()
    learner = TokenLearner(world, TokensConfig(total_frames=300, fresh=False))
    best = signs([learner.random_best()])
    assert world.asked == [0] * 10
    assert best == signs(drawn_programs(WORDS, 320, 0, world.config.most_lines)).max() > 0


def test_what_it_does_not_write_for_is_refused():
    with pytest.raises(ValueError, match="learns task 'strategy' alone"):
        TokenLearner(SimpleNamespace(config=StrategyConfig()), TokensConfig())
    with pytest.raises(ValueError, match="weights or tilt"):
        TokenLearner(Signs(action="shares"), TokensConfig())
    alone = Signs()
    alone.num_rows = 1
    with pytest.raises(ValueError, match="num_envs must be 2 or more, got 1"):
        ALGORITHM.learner(alone, TokensConfig())
    with pytest.raises(ValueError, match="--curriculum uniform has no effect: --algorithm tokens has no levels"):
        plan(train_settings(task="strategy", curriculum="uniform"))


def test_what_the_longest_settings_allow_is_of_the_language():
    longest = DEEPEST - 4
    with pytest.raises(ValueError, match="longest"):
        TokensConfig(longest=longest + 1)
    policy = TokenPolicy(Vocabulary(FEATURES, outputs={"weight": WEALTH}), 0, 8, longest)
    with torch.no_grad():
        # One operation within the other, as deep as it can be.
        policy.head.bias += 9.0 * torch.tensor([len(token.operands) == 1 for token in policy.tokens])
        written = policy.write(64)
    assert int((written.tokens >= 0).sum(1).max()) == longest
    assert len(policy.programs(written.tokens)) == 64


def test_the_command_trains_it_goes_on_and_evaluates_it(tmp_path, capsys):
    folder, told = tmp_path / "run", tmp_path / "told.json"
    small = "--env.num-paths 16 --env.num-days 64 --env.days 4 --env.paths 4 --env.embargo 2 --episodes 3 --num-envs 8"
    words = f"train --task strategy {small} --agents buy_and_hold --seed 3 --learner.longest 8 --learner.hidden 8"
    assert cli.main([*words.split(), "--learner.total-frames", "16", "--folder", str(folder)]) == 0
    document = json.loads((folder / "metrics.json").read_text())
    agents = document["evaluation"]["agents"]
    assert list(agents) == ["trained", "untrained", "best_of_as_many", "buy_and_hold", "best_rule", "random"]
    assert document["settings"]["algorithm"] == "tokens" and document["settings"]["episodes"] == 3
    pictures = {"learning_curve.png", "grade_by_try.png", "overfit_gap.png", "grades.png", "standard_error.png"}
    assert pictures <= {path.name for path in folder.iterdir()}
    # What an agent of an earlier comparison said does not stay.
    (folder / "conversations_rsi.jsonl").write_text("")
    assert cli.main(["train", "--resume", str(folder), "--learner.total-frames", "24"]) == 0
    assert not (folder / "conversations_rsi.jsonl").exists() and (folder / "conversations_untrained.jsonl").exists()
    assert [row["update"] for row in read_metrics(folder / "metrics.csv")] == [1, 2, 3]
    evaluate = f"evaluate --checkpoint {folder} --episodes 3 --seed 3 --agents buy_and_hold --json {told}"
    assert cli.main(evaluate.split()) == 0
    again = json.loads(told.read_text())["agents"]
    resumed = json.loads((folder / "metrics.json").read_text())["evaluation"]["agents"]
    assert again["trained"] == resumed["trained"]
    capsys.readouterr()
    for wrong, why in (
        ("--task portfolio --algorithm tokens", "--algorithm tokens learns conversations by itself, and task 'portfol"),
        ("--task strategy --algorithm tokens --model m", "--algorithm tokens learns conversations by itself, not --m"),
        ("--task strategy --start-episodes 3", "--start-episodes belongs to the training of a conversation without"),
        ("--task strategy --validation-fraction 0.2", "validation_fraction must be"),
    ):
        assert cli.main(["train", *wrong.split()]) == cli.BAD_INPUT and why in capsys.readouterr().err
    grpo = train_settings(task="strategy", algorithm="grpo")
    assert grpo.of_language and grpo.learner.answer_tokens == 160 and grpo.batch.group_size == 32
