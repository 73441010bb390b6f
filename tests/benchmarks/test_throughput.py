"""The harness: figures of made-up timings are exact, and results whole; the cases: what they count, and each runs."""

import json
import math
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from vecenv.benchmarks import device as machine
from vecenv.benchmarks import harness
from vecenv.benchmarks.harness import Point, Times, Workload, figures_of, measured, run, timed
from vecenv.benchmarks.result_files import result_of, summary_text, write_result
from vecenv.benchmarks.throughput import comparisons, served_sessions, worldmodel
from vecenv.benchmarks.throughput import curve as throughput
from vecenv.benchmarks.throughput.cases import CASES, CaseConfig, main
from vecenv.benchmarks.throughput.command import BenchConfig
from vecenv.benchmarks.throughput.language import news_texts, text_points, typical_texts
from vecenv.benchmarks.workloads import fill_given_actions, market_numbers, necessary_bytes
from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.core.rows import leaves
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.registry import make
from vecenv.sandbox.jail import lacking
from vecenv.system.memory import TooLittleMemoryError
from vecenv.tasks.tiers.reward import COMPONENTS
from vecenv.text.door import TextDoor
from vecenv.worldmodel.network import market_network, transformer

MARKET = {"num_paths": 2, "num_days": 330}
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def tier_env(num_envs: int = 4, task: str = "multi_stock_3", **rules) -> VecEnv:
    return make(task, num_envs, market_options=MARKET, compile=False, **rules)


def given(env: VecEnv, num_steps: int, observed: bool = True) -> FusedCollector:
    return FusedCollector(env, "given", num_steps, store_observations=observed)


@pytest.mark.parametrize("task", ["multi_stock_3", "curriculum"])
def test_given_orders_are_valid_and_different(task):
    collector = given(tier_env(task=task, action="orders"), 3)
    fill_given_actions(collector)
    collector.rollout()
    components = collector.rows().state.components
    assert components[..., COMPONENTS.index("valid")].all()
    kind, symbol, fraction = collector.actions.unbind(-1)
    assert set(kind.flatten().tolist()) == {0.0, 1.0, 2.0}
    torch.testing.assert_close(fraction * 10, (fraction * 10).round())
    assert float(fraction.min()) >= 0.1 and float(fraction.max()) <= 1.0
    assert set(symbol.flatten().tolist()) == ({0.0, 1.0, 2.0} if task == "multi_stock_3" else {0.0})


def test_necessary_bytes():
    # Twice the state, the action and the reward; and the observation with what of the market it shows.
    env = tier_env(action="orders")
    seen, unseen = (necessary_bytes(given(env, 2, observed)) for observed in (True, False))
    state = sum(leaf[0].numel() * leaf.element_size() for leaf in leaves(env.rows))
    assert unseen == 2 * state + 4 * 8 * 3 + 4 + 4 * (3 * 4 + 3)
    assert seen - unseen == 4 * (16 + 17 * 3) + 4 * 3 * (12 + 1 - 2)
    # By reference the own part and the day instead of the whole, and a row of the table instead of the features.
    env = make("stock_trading", 2, market_options=MARKET, compile=False)
    config = PPOConfig(num_steps=2, minibatches=1, hidden=(8,))
    whole, parts = (PPO(env, replace(config, by_reference=by)).collector for by in (False, True))
    symbols, features = env.scenario.tape.num_symbols, len(env.scenario.tape.feature_names)
    fewer_written, fewer_read = 4 * symbols * (1 + features) - 8, 4 * (symbols * features - 8)
    assert necessary_bytes(whole) - necessary_bytes(parts) == fewer_written + fewer_read
    assert market_numbers(env.scenario, observed=True) == symbols * (2 + features)
    assert market_numbers(env.scenario, observed=False) == symbols * 2
    collector = given(env, 2)
    fill_given_actions(collector)
    assert -1 <= float(collector.actions.min()) < -0.9 and 0.9 < float(collector.actions.max()) <= 1
    assert not torch.equal(*collector.actions)
    # The oracle of the tests runs on the same market.
    assert comparisons.scalar_steps_per_second(env.scenario.tape) > 0


def test_every_step_that_is_counted_is_live(monkeypatch):
    """Rows whose episodes end go on with the next: a rollout of N rows and T steps pays and advances N x T times."""
    config = BenchConfig(task="multi_stock_3", num_steps=30, num_days=330, max_buffer_gb=1.0)
    made = {}

    def kept(env, *given, **named):
        return made.setdefault(env, FusedCollector(env, *given, **named))

    monkeypatch.setattr(throughput, "FusedCollector", kept)
    tape = throughput.tape_of_task(config)
    (workload,) = throughput.curve_point(config, lambda: tape, "environment", "eager", 4, copy=1e9).make()
    (collector,) = made.values()
    workload.call()
    assert workload.units == 4 * 30 == collector.reward.numel()
    # An episode has 25 days at most: every row ended in 30 steps, and none stood still.
    rows = collector.rows()
    assert bool(rows.truncated.any(0).all()) and bool((rows.state.day.diff(dim=0) != 0).all())
    told = workload.told()
    assert told["bytes_per_step"] == necessary_bytes(collector) and workload.limit == 1e9 / told["bytes_per_step"]
    assert (told["column"], told["mode"], told["num_envs"], told["num_steps"]) == ("environment", "eager", 4, 30)
    # No graph holds episodes that begin with a warm-up.
    monkeypatch.setattr(throughput, "FusedCollector", Mock(side_effect=InterruptedError))
    with pytest.raises(InterruptedError):
        throughput.curve_point(BenchConfig(task="execution"), lambda: None, "environment", "cuda_graph", 4, 1e9).make()
    assert throughput.FusedCollector.call_args.kwargs["mode"] == "compiled"
    monkeypatch.setattr(throughput, "FusedCollector", kept)
    small = replace(config, max_buffer_gb=1e-9)
    assert throughput.curve_point(small, lambda: tape, "environment", "eager", 4, 1e9).make()[0].units == 4


def test_the_plan_of_settings_and_what_does_not_fit():
    config = BenchConfig(num_envs=(2048, 4), columns=("environment", "training", "text"), largest_training=100)
    fastest = [("environment", "recorded", 4), ("environment", "recorded", 2048), ("training", "recorded", 4)]
    slower = [("environment", "eager", 2048), ("environment", "compiled", 2048)]
    assert throughput._plan(config, CPU) == [*fastest, *slower]
    on_gpu = throughput._plan(config, torch.device("cuda"))
    assert on_gpu[0] == ("environment", "cuda_graph", 4) and len(on_gpu) == 5
    # The picture's curve goes through the fastest mode of each size, whichever order they were measured in.
    rates = [(64, "environment", 5.0), (8, "environment", 2.0), (8, "environment", 3.0), (8, "policy", 9.0)]
    found = [{"num_envs": count, "column": column, "per_second": rate} for count, column, rate in rates]
    assert throughput.curve_of(found, "environment") == [(8, 3.0), (64, 5.0)]
    for settings, words in (
        ({"task": "portfolio", "rationing": "by_size"}, "rationing is a setting of stock_trading, not of portfolio"),
        ({"task": "portfolio", "preset": "figure3"}, "preset is a setting of stock_trading"),
        ({"task": "execution", "num_days": 5}, "num_days is a setting of tasks on a market of bars, not of execution"),
        ({"repeats": 4}, "repeats must be at least 5, got 4"),
    ):
        with pytest.raises(ValueError, match=words):
            BenchConfig(**settings)
    with pytest.raises(ValueError, match="unknown case 'tea'; there are auction, doors, ensemble"):
        CaseConfig("tea")
    with pytest.raises(ValueError, match="rounds must be at least 3, got 2"):
        CaseConfig("auction", rounds=2)
    with pytest.raises(ValueError, match="cannot render 6 of 4 sub-environments"):
        text_points("execution", lambda: None, 4, (2, 6))
    assert CaseConfig("auction", size="gpu").sized(1, 2) == 2 and CaseConfig("auction", size="gpu").sized(1, 2, 3) == 3
    with pytest.raises(RuntimeError, match="did not start"):
        served_sessions.started_server(["-c", "print('no')"])


def test_typical_texts_are_mostly_valid_and_news_differ():
    env = tier_env(12, action="orders")
    actions, valid = TextDoor(env).parse(typical_texts(env.scenario.tape.symbols, 12), range(12))
    assert valid.tolist() == 2 * [True, True, True, True, False, True]
    assert actions[:, :, 0].count_nonzero(-1).tolist() == 2 * [0, 1, 1, 2, 1, 2]
    assert news_texts(300, 12) == news_texts(300, 12) != news_texts(300, 12, seed=1)
    texts = news_texts(300, 60)
    assert len(set(texts)) == 300 and 60 <= min(len(text.split()) for text in texts) < 68


def test_operations_and_bytes_of_a_stock_day(monkeypatch):
    """A layer of width 8 with two heads: counted by hand; the limit is the slower of arithmetic and memory."""
    trunk = transformer.TransformerSettings(layers=1, width=8, heads=2, hidden=16, window=10)
    network = market_network.MarketNetwork(market_network.NetworkSettings(trunk, head=4, markets=("one",)))
    features = network.trunk.embed.in_features
    weights = features * 8 + 8 * (8 + 2 * 4) + 8 * 8 + 8 * 16 + 16 * 8
    # Each of two heads multiplies its query with ten keys, and ten weights with values, of four numbers.
    operations = 2 * (weights + 2 * (10 * 4 + 10 * 4))
    assert worldmodel.operations_per_stock_day(network) == operations
    assert worldmodel.bytes_per_stock_day(network) == 10 * (4 + 4) * 4
    rates = {"product": float(operations), "copy": 2 * 320 * 4.0}
    monkeypatch.setattr(machine, "product_rate", lambda *size: rates["product"])
    monkeypatch.setattr(machine, "copy_bandwidth", lambda device: rates["copy"])
    assert worldmodel.rollout_limit(network, 2, CPU) == 1.0
    rates["copy"] = 320.0
    assert worldmodel.rollout_limit(network, 2, CPU) == 0.5


def test_figures_of_made_up_timings(monkeypatch):
    """The ratio is the median of the rounds' ratios, 1, 2 and 4, not that of the medians, 8 / 3."""
    one = Workload("one", lambda: None, 12.0, limit=8.0)
    two = Workload("two", lambda: None, 20.0, "texts", beside="one", told={"width": 7})
    times = {"one": Times([3.0, 4.0, 2.0], [3.0, 3.0, 3.0], 13.0), "two": Times([3.0, 8.0, 8.0], [6.0, 1.5, 3.0], 7.5)}
    first, second = figures_of([one, two], times)
    assert (first.per_second, first.fastest, first.seconds, first.compile_seconds) == (4.0, 6.0, 3.0, 10.0)
    assert (first.limit_share, first.time_ratio, first.processor_ratio) == (0.5, None, None)
    assert (second.per_second, second.fastest, second.compile_seconds) == (2.5, 20.0 / 3.0, 0.0)
    assert (second.time_ratio, second.processor_ratio, second.limit_share) == (2.0, 1.0, None)
    assert (second.unit, second.beside, second.told) == ("texts", "one", {"width": 7})
    assert first.line() == "one: 4 steps/s, 3,000.00 ms, 50.0% of the limit, compiled in 10 s"
    assert second.line() == "two: 2 texts/s, 8,000.00 ms, 2.000 times as long as one (1.000 of the processor), width 7"
    # A copy reads and writes, a fill writes; products are as many as make a measurement long enough.
    monkeypatch.setattr(machine, "COPY_BYTES", 4096)
    monkeypatch.setattr(machine, "seconds_of", lambda call, device, repeats: (call(), [4.0, 1.0, 2.0])[1])
    assert machine.copy_bandwidth(CPU) == 4096.0 and machine.write_bandwidth(CPU) == 2048.0
    monkeypatch.setattr(machine, "PRODUCT_OPERATIONS", {"cpu": 1000})
    # 2 x 4 x 5 x 6 operations a product, of which five are at least a thousand.
    assert machine.product_rate(4, 5, 6, torch.float32, CPU) == 5 * 240 / 2.0


def test_workloads_take_turns_short_calls_are_bundled_and_a_gpu_is_timed_between_events(monkeypatch):
    """A clock of our own: a call of a takes 1/128 s, so three make a bundle, one of b 1/16 s; the first ones more."""
    clock, calls = [0.0], []

    def passes(name: str, seconds: float, first: float) -> None:
        clock[0] += first if name not in calls else seconds
        calls.append(name)

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(time, "process_time", lambda: clock[0] / 2)
    a, b = Workload("a", lambda: passes("a", 1 / 128, 1.0), 1), Workload("b", lambda: passes("b", 1 / 16, 2.0), 1)
    found = timed([a, b], CPU, 3)
    # The first calls, one to warm up, one to count the bundle, and the rounds.
    assert "".join(calls) == "ab" + "ab" + "ab" + 3 * "aaab"
    assert (found["a"].first, found["b"].first) == (1.0, 2.0)
    assert found["a"].wall == [1 / 128] * 3 and found["a"].processor == [1 / 256] * 3
    assert found["b"].wall == [1 / 16] * 3 and found["b"].processor == [1 / 32] * 3
    # A GPU is timed between events.
    done = []
    event = SimpleNamespace(record=lambda: done.append("event"), elapsed_time=lambda other: 250.0)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: enable_timing and event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: done.append("wait"))
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    assert machine.seconds_of(lambda: done.append("call"), GPU, 2) == [0.25, 0.25]
    assert done == ["wait", "event", "call", "event", "wait"] * 2
    assert harness._seconds(lambda: None, GPU, 5) == (0.05, 0.05)


@dataclass(frozen=True)
class Config:
    near: Path = Path("here/file")
    far: Path = Path("/somewhere/else/file.parquet")
    sizes: tuple[int, ...] = (1, 2)
    more: tuple[Path, ...] = (Path("/somewhere/else/one.json"),)


def test_what_does_not_fit_is_told_and_a_result_has_its_conditions(capsys, tmp_path):
    def too_large():
        raise TooLittleMemoryError("no room")

    counted = []
    good = Point("good", lambda: [Workload("one", lambda: counted.append(1), 2, told=lambda: {"calls": len(counted)})])
    found = run([Point("large", too_large), good], CPU, 3)
    assert list(found) == ["good"] and "large does not fit the memory" in capsys.readouterr().out
    (figure,) = found["good"]
    # What is told is asked for after the timed calls.
    assert figure["told"]["calls"] == len(counted) > 3 and figure["told"]["peak_memory_bytes"] > 0
    assert figure["per_second"] == pytest.approx(2 / figure["seconds"])
    with pytest.raises(TooLittleMemoryError):
        measured(Point("large", too_large), CPU, 3)
    result = result_of(Config(), benchmark="made up", value=1 / 3, none=math.nan, long=[{"name": 1.23456789}] * 20)
    assert result["config"] == {"near": "here/file", "far": "file.parquet", "sizes": [1, 2], "more": ["one.json"]}
    assert result["torch"] == torch.__version__ and result["device"] == machine.device_name(CPU)
    write_result(tmp_path / "new", "one", result, "page\n")
    text = (tmp_path / "new" / "one.json").read_text()
    told = json.loads(text)
    assert told["value"] == 0.33333 and told["none"] is None and told["long"] == [{"name": 1.2346}] * 20
    assert max(map(len, text.splitlines())) <= 160 and text.count("\n") == 20 + len(result) - 1 + 4
    assert (tmp_path / "new" / "one.md").read_text() == "page\n"
    write_result(None, "two", result)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["one.json", "one.md"]
    assert summary_text({"ä": "… τ"}) == '{"ä": "… τ"}\n'
    plain = [1.0, 2, True, "x", None]
    assert json.loads(summary_text({"a": [*plain, math.inf]})) == {"a": [*plain, None]}
    stem = machine.file_stem("Intel(R) Xeon(R) Processor @ 2.50GHz, 1 thread")
    assert stem == "intel-xeon-processor-2-50ghz-1-thread"


LONG = ("ensemble", "grpo_rollouts", "served_sessions")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly) if name in LONG else name for name in CASES]
)
@pytest.mark.assembly
def test_every_case_runs(name, tmp_path, monkeypatch):
    if name == "served_sessions" and not (find_spec("openenv") and find_spec("websockets")):
        pytest.skip("the server needs vecenv[openenv]")
    if name == "sandbox" and lacking():
        pytest.skip(f"no jail here: {dict(lacking())}")
    monkeypatch.setattr(machine, "COPY_BYTES", 2**16)
    result = main(CaseConfig(name, rounds=3, size="small", compile=False, output=tmp_path))
    (path,) = tmp_path.iterdir()
    assert path.name.startswith(f"{name.replace('_', '-')}-") and set(json.loads(path.read_text())) == set(result)
    assert result["points"]
    for figures in result["points"].values():
        names = [figure["name"] for figure in figures]
        assert len(set(names)) == len(names) and all(figure["per_second"] > 0 for figure in figures)
        assert all((figure["time_ratio"] is None) == (figure["beside"] is None) for figure in figures)


@pytest.mark.assembly
def test_curves_are_measured_beside_published_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(machine, "COPY_BYTES", 2**16)
    small = {"modes": ("eager",), "num_steps": 2, "repeats": 5, "output": tmp_path}
    columns = ("environment", "without_observations", "policy", "training", "text")
    texts = {"text_envs": 8, "text_rows": (2, 6)}
    tier = throughput.main(BenchConfig("multi_stock_3", (4,), columns, num_days=330, **texts, **small))
    (path,) = tmp_path.glob("*.json")
    assert path.name.startswith("throughput-multi-stock-3-") and path.with_suffix(".png").exists()
    assert [figure["column"] for figure in tier["figures"]] == list(columns[:-1])
    assert tier["market"]["symbols"] == 3 and tier["published"] == []
    texts = {point: [figure["name"] for figure in figures] for point, figures in tier["text"].items()}
    assert texts == {style: ["render 2", "render 6", "parse 6"] for style in ("text, full", "text, compact")}
    capsys.readouterr()
    market = throughput.main(BenchConfig("market_making", (4, 2**30), ("environment",), **small))
    (figure,) = market["figures"]
    # Five ticks a step, of one to four messages each.
    assert 5 < figure["messages_per_step"] < 20
    told = capsys.readouterr().out
    assert "N=1,073,741,824 does not fit the memory" in told
    assert "published, not measured here: 21,969 steps/s, 2,196,900 messages/s at N=4,000: JaxMARL-HFT" in told
    assert len(market["published"]) == 3 and list(tmp_path.glob("throughput-market-making-*.png"))
