"""The peers play by our rules: in C++ with our bits, in JAX with our numbers; and a table of both is made."""

import json
import re
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch

import vecenv
from vecenv.benchmarks.harness import Workload
from vecenv.benchmarks.throughput.cases import CaseConfig
from vecenv.benchmarks.throughput.command import BenchConfig, main
from vecenv.benchmarks.throughput.peers.comparison import _timed
from vecenv.benchmarks.throughput.peers.host_time import Part, parts, table
from vecenv.benchmarks.throughput.peers.stock_trading_native import NativeStockTrading
from vecenv.benchmarks.workloads import fill_given_actions
from vecenv.core.collector import FusedCollector

NUM_ENVS, NUM_STEPS = 17, 32


def collector(**rules: float) -> FusedCollector:
    """Return a collector of random actions, some of them out of bounds or no number."""
    market = {"num_paths": 3, "num_days": 400}
    env = vecenv.make("stock_trading", NUM_ENVS, market_options=market, compile=False, seed=2**40 + 7, **rules)
    made = FusedCollector(env, "given", NUM_STEPS)
    torch.manual_seed(0)
    fill_given_actions(made)
    made.actions[3, 2, :2] = torch.tensor([float("nan"), 3.0])
    return made


def test_the_peer_in_cpp_has_our_bits():
    ours = collector(episode_length=40, min_episode_length=10, initial_cash=200_000.0)
    native = NativeStockTrading(ours.env, NUM_STEPS)
    native.actions.copy_(ours.actions)
    for _ in range(3):
        ours.rollout()
        native.rollout()
        rows = ours.rows()
        pairs = [(native.observations, ours.observation), (native.reward, ours.reward), (native.ended, rows.ended)]
        pairs += [(native.cash, rows.state.cash[-1]), (native.holdings, rows.state.holdings[-1])]
        assert all(torch.equal(peers.to(own.dtype), own) for peers, own in pairs)
    assert bool(rows.ended.any()) and float(rows.state.buy_ratio.min()) < 1


def test_the_peer_in_jax_has_our_numbers():
    pytest.importorskip("jax")
    import jax

    from vecenv.benchmarks.throughput.peers.stock_trading_jax import accounts_of, market_of, restarted, rollout_of

    ours = collector(episode_length=250)
    market, accounts = market_of(ours.env), accounts_of(ours.env)
    rollout, kept = rollout_of(market), None
    for _ in range(2):
        ours.rollout()
        accounts, kept = rollout(accounts, jax.numpy.asarray(ours.actions.numpy()), jax.random.key(0), kept)
        rows = ours.rows()
        own = [ours.observation, ours.reward, ours.terminated, ours.truncated]
        own += [rows.state.cash[-1], rows.state.holdings[-1]]
        for peers, mine in zip((*kept, accounts.cash, accounts.holdings), own, strict=True):
            assert torch.equal(torch.from_numpy(np.array(peers)), mine)
    done = accounts._replace(done=accounts.cash < accounts.cash.max())
    fresh = restarted(market, done, jax.random.key(1))
    assert (fresh.cash == market.cash).sum() == NUM_ENVS - 1 and not fresh.done.any()
    new = np.array(done.done)
    assert len(set(np.array(fresh.day)[new])) > 5 and int(fresh.end_day.max()) <= market.days - 1


def test_what_the_host_decides_is_told_beside_its_peer_with_the_processor_time_of_what_it_starts():
    def spun(seconds: float) -> partial:
        loop = f"import time\nwhile time.process_time() < {seconds}: pass"
        return partial(subprocess.run, [sys.executable, "-c", loop], check=True)

    workloads = [Workload("ours", spun(0.3), 1), Workload("theirs", spun(0.9), 1, beside="ours")]
    figures = _timed(workloads, 3)
    assert 1.5 < figures[1].processor_ratio < 4
    line = table({Part("starts", lambda: workloads): figures}).splitlines()[-1]
    assert re.fullmatch(r"\| starts: ours \| [\d.]+ m?s \| [\d.]+ m?s: theirs \| [\d.]+ \|", line)
    assert Part("served", list, ("json", "no_such_module")).lacking == "Not run, for want of no_such_module: served."
    (book,) = (part for part in parts(CaseConfig("doors", size="small")) if part.name == "order book")
    one, many = (figure.per_second for figure in _timed(book.make(), 3))
    assert 0 < one < many and not book.lacking


@pytest.mark.nightly
def test_the_table_of_peers(tmp_path, capsys):
    pytest.importorskip("jax")
    small = {"num_days": 400, "num_steps": 8, "episode_length": 20, "modes": ("eager",), "repeats": 5}
    main(BenchConfig(num_envs=(2, 4), peers=True, output=tmp_path, **small))
    (path,) = tmp_path.glob("peers-*.json")
    assert path.with_suffix(".png").stat().st_size > 10_000
    points = json.loads(path.read_text())["points"]
    assert {name: len(figures) for name, figures in points.items()} == {
        "steps, N = 2": 3,
        "steps, N = 4": 3,
        "PPO, N = 4": 2,
    }
    assert "| steps, N = 2 | " in capsys.readouterr().out
    with pytest.raises(ValueError, match="peers is a setting of stock_trading"):
        BenchConfig(task="portfolio", peers=True)
