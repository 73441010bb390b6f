"""The policy over tokens writes programs of the language, and learns what they are worth."""

import pytest
import torch

from tests.tasks.strategy.test_search import WORDS, near
from vecenv.programs.expressions import Feature, Vocabulary
from vecenv.programs.printing import printed
from vecenv.programs.units import BARS, MONEY, NONE, PRICE, RETURN, WEALTH
from vecenv.tasks.strategy.policy import BATCH, LONGEST, TokenPolicy, grammar, learn

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
        assert int(lengths.max()) <= LONGEST and bool((each.entropy >= 0).all())
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


def test_it_learns_and_again_the_same():
    def learned(seed):
        policy = TokenPolicy(WORDS, seed)
        best, means = learn(policy, lambda programs: near(programs, 1), 40 * BATCH)
        return best, means, policy.programs(policy.write(1, greedy=True).tokens)[0]

    best, means, greedy = learned(2)
    assert sum(means[-5:]) / 5 > sum(means[:5]) / 5 + 0.1
    assert near([greedy], 1)[0] > max(means[:5]) and near([best], 1)[0] >= near([greedy], 1)[0] - 1e-6
    again = learned(2)
    assert means == again[1] and printed(best) == printed(again[0])
