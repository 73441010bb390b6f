"""Programs as tensors: equal to the oracle bit for bit, to pandas, and blind to the future."""

import random
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest
import torch

from tests.programs.oracle import Oracle
from vecenv.programs import evaluation, native
from vecenv.programs.drawing import random_programs
from vecenv.programs.evaluation import Evaluator
from vecenv.programs.export import exported
from vecenv.programs.expressions import Feature, Vocabulary
from vecenv.programs.graph import Graph
from vecenv.programs.parsing import parsed
from vecenv.programs.units import NONE, PRICE, WEALTH

WORDS = Vocabulary(
    features={
        "close": Feature(PRICE),
        "rsi": Feature(NONE),
        "held": Feature(WEALTH, account=True),
        "cash": Feature(WEALTH, account=True),
    },
    outputs={"weight": WEALTH},
)
PATHS, BARS, SYMBOLS = 2, 8, 4
ODD = (0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 1e-45, -1e-40, 3e38, -3e38)


def program(text):
    return parsed(text, WORDS)


def odd_features(seed, shape=(PATHS, BARS, SYMBOLS)):
    """Features of which a third are numbers at the edges of float32, and many equal."""
    draw = random.Random(seed)

    def number():
        return draw.choice(ODD) if draw.random() < 0.3 else draw.choice((draw.gauss(0, 1), draw.randint(-3, 3)))

    count = int(np.prod(shape))
    return {name: torch.tensor([number() for _ in range(count)]).view(shape) for name in WORDS.features}


def evaluated(programs, features, **options):
    """Return outputs on all lanes: (P, S, T, K)."""
    evaluator = Evaluator(programs, **options)
    return evaluator.step(evaluator.ahead(features), features)[:, 0]


def assert_same(found, wanted):
    """NaN is one value, whatever its bits."""
    assert torch.equal(found.isnan(), wanted.isnan())
    bits = [values.nan_to_num(1.5, np.inf, -np.inf).view(torch.int32) for values in (found, wanted)]
    assert torch.equal(*bits)


def of_oracle(program, features):
    arrays = {name: values.numpy() for name, values in features.items()}
    found = np.empty((PATHS, BARS, SYMBOLS), dtype=np.float32)
    with np.errstate(all="ignore"):
        for path in range(PATHS):
            oracle = Oracle(program, {name: list(map(list, values[path])) for name, values in arrays.items()})
            for bar in range(BARS):
                for symbol in range(SYMBOLS):
                    (found[path, bar, symbol],) = oracle.outputs(bar, symbol)
    return torch.from_numpy(found)


def check_against_oracle(count, seed, monkeypatch, batch=1000):
    """Compare graph and machine with the oracle, the batches in one thread and in two by turns."""
    monkeypatch.setattr(native, "THREAD_WORK", 1)
    for first in range(0, count, batch):
        programs = random_programs(WORDS, min(batch, count - first), seed + first)
        features = odd_features(seed + first)
        with threads(1 + first // batch % 2):
            found = evaluated(programs, features, native=False)
            assert_same(evaluated(programs, features), found)
        for one, own in zip(programs, found, strict=True):
            assert_same(own, of_oracle(one, features))


@contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


HAND = {"close": [[1, 4], [2, 3], [4, 0]], "rsi": [[0, 1], [2, 0], [-3, 1]]}
HAND |= {"held": [[0.5, 0.25]] * 3, "cash": [[0.25, 0.0]] * 3}
NAN = float("nan")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("rsi / (rsi - 2)", [[-0.0, -1], [0, -0.0], [0.6, -1]]),
        ("held / cash", [[2, 0]] * 3),
        ("plain(delta(close, bars=1))", [[NAN, NAN], [1, -1], [2, -3]]),
        ("plain(max(close, bars=2)) - plain(min(close, bars=2))", [[NAN, NAN], [1, 1], [2, 3]]),
        ("plain(mean(close, bars=2))", [[NAN, NAN], [1.5, 3.5], [3, 1.5]]),
        ("plain(std(close, bars=2)) ", [[NAN, NAN], [0.5**0.5, 0.5**0.5], [2**0.5, 4.5**0.5]]),
        ("rank(close)", [[0.5, 1], [0.5, 1], [1, 0.5]]),
        ("rank(0 * close)", [[0.75, 0.75]] * 3),
        ("rank(lag(close, 1))", [[NAN, NAN], [0.5, 1], [0.5, 1]]),
        ("0.1 if 0 <= rsi < 2 and not close != 4 or rsi == -3 else sign(rsi)", [[0, 0.1], [1, 0], [0.1, 1]]),
        ("clip(rsi, 0, 1) + max(held, 0.3) - abs(-0.1) + sign(close - 3)", None),
    ],
)
def test_numbers_by_hand(text, wanted):
    features = {name: torch.tensor([rows], dtype=torch.float32) for name, rows in HAND.items()}
    found = evaluated([program(f"weight = {text}")], features)[0, 0]
    if wanted is not None:
        assert_same(found, torch.tensor(wanted, dtype=torch.float32))
    else:
        assert found[1].tolist() == pytest.approx([1.4 - 1, 0.2])


def test_rolling_functions_are_those_of_pandas():
    values = torch.randn(3, 300, 5, generator=torch.Generator().manual_seed(0))
    values[0, 20:25, 1] = NAN
    for window in (2, 3, 7, 250):
        texts = [f"plain({name}(close, bars={window}))" for name in ("mean", "std", "max", "min", "delta", "lag")]
        programs = [program(f"weight = {text}") for text in [*texts, "rank(close)"]]
        found = Evaluator(programs).over({"close": values})[:, 0]
        for path, own in enumerate(values):
            table = pd.DataFrame(own.double().numpy())
            rolling = table.rolling(window)
            wanted = [rolling.mean(), rolling.std(), rolling.max(), rolling.min(), table.diff(window)]
            wanted += [table.shift(window), table.rank(axis=1, pct=True)]
            for one, other in zip(found[:, path], wanted, strict=True):
                np.testing.assert_allclose(one.numpy(), other.to_numpy(), rtol=1e-5, atol=1e-6)


def test_nothing_sees_the_future():
    programs = random_programs(WORDS, 300, 3, past=0.4)
    features = {name: torch.randn(1, 30, 3, generator=torch.Generator().manual_seed(1)) for name in WORDS.features}
    later = {name: torch.cat([values[:, :20], values[:, 20:] + 1], 1) for name, values in features.items()}
    before, after = (evaluated(programs, given) for given in (features, later))
    assert_same(before[:, :, :20], after[:, :, :20])
    assert not torch.equal(before[:, :, 20:].nan_to_num(), after[:, :, 20:].nan_to_num())


def test_equal_parts_stand_once_and_dead_lines_not_at_all():
    texts = ["a = mean(rsi, 5)\nb = close > 1\nweight = held * a", "weight = mean(rsi, bars=5) * held + 0 * (1 + 2)"]
    graph = Graph([program(text) for text in texts])
    operations = [node.operation for node in graph.nodes]
    assert operations == ["feature", "mean", "account", "mul", "constant", "constant", "constant", "constant", "add"]
    own = Graph([program(text) for text in texts], own_accounts=True)
    assert [node.operation for node in own.nodes].count("mul") == 2
    assert [node.operation for node in own.nodes].count("mean") == 1
    assert graph.frontier() == [[1], []] and graph.depth() == 3


def test_programs_alone_in_pieces_in_threads_and_without_a_compiler(monkeypatch):
    programs, features = random_programs(WORDS, 60, 9), odd_features(9, (5, 40, 7))
    together = evaluated(programs, features)
    for one, wanted in zip(programs, together, strict=True):
        assert_same(evaluated([one], features)[0], wanted)
    monkeypatch.setattr(evaluation, "BUFFER", 1000)
    monkeypatch.setattr(native, "THREAD_WORK", 1)
    with threads(2):
        assert_same(evaluated(programs, features), together)
    monkeypatch.setattr(native, "machine", lambda: None)
    assert_same(evaluated(programs, features), together)
    # Many operations whose operands are constants, one row or rows side by side, a few nodes at a time.
    monkeypatch.setattr(evaluation, "SHORTEST", 2)
    monkeypatch.setattr(evaluation, "BLOCK", 64)
    assert_same(evaluated(programs, features), together)


def test_programs_with_accounts_of_their_own():
    programs = random_programs(WORDS, 20, 4)
    features = odd_features(4)
    accounts = {name: torch.randn(20, *features[name].shape) for name in ("held", "cash")}
    evaluator = Evaluator(programs, own_accounts=True)
    rows = evaluator.ahead(features)
    found = evaluator.step(rows[:, 1, 3], {name: values[:, 1, 3] for name, values in accounts.items()})
    for number, one in enumerate(programs):
        own = {name: values[number] for name, values in accounts.items()}
        assert_same(found[number, 0], evaluated([one], features | own)[0, 1, 3])


def test_what_does_not_fit_is_refused_by_name():
    evaluator = Evaluator([program("weight = held + plain(close) * rsi")])
    features = odd_features(0)
    with pytest.raises(ValueError, match="programs read unknown features rsi; there are close"):
        evaluator.ahead({"close": features["close"]})
    with pytest.raises(ValueError, match=r"rsi must have 3 dimensions of float32, got \(2, 8, 4\) float64"):
        evaluator.ahead(features | {"rsi": features["rsi"].double()})
    with pytest.raises(ValueError, match=r"the features do not fit each other: close \(2, 8, 4\), rsi \(3, 8, 4\)"):
        evaluator.ahead(features | {"rsi": torch.zeros(3, 8, 4)})
    with pytest.raises(ValueError, match="a graph needs at least one program, and all of one vocabulary"):
        Graph([])


def test_random_programs_are_the_oracles_bit_for_bit(monkeypatch):
    check_against_oracle(300, 5, monkeypatch, batch=150)


def test_exported_programs_are_the_graphs_bit_for_bit():
    programs, features = random_programs(WORDS, 60, 21, past=0.3), odd_features(21)
    for one, wanted in zip(programs, evaluated(programs, features), strict=True):
        module = {}
        exec(exported(one), module)
        for path in range(PATHS):
            known = {name: values[path].numpy() for name, values in features.items()}
            account = {name: known.pop(name)[-1] for name in ("held", "cash")}
            found = module["strategy"](known, account)["weight"]
            assert_same(torch.from_numpy(found.copy()), wanted[path, -1])
    assert len(exported(program(f"weight = {'delta(' * 20}rsi{', 1)' * 20}"))) < 10_000


@pytest.mark.nightly
def test_many_random_programs_are_the_oracles_bit_for_bit(monkeypatch):
    check_against_oracle(100_000, 11, monkeypatch)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_gives_the_same_numbers():
    programs, features = random_programs(WORDS, 200, 31), odd_features(31, (5, 40, 7))
    there = {name: values.cuda() for name, values in features.items()}
    wanted = evaluated(programs, features)
    for fast in (False, True):
        assert_same(evaluated(programs, there, native=fast, device="cuda").cpu(), wanted)
