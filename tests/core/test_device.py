"""Devices by name, their memory, and sizes that cannot fit, refused in a sentence before anything of them is made."""

import warnings
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from tests.small_env import make_env
from vecenv.core.checks import device_named, warn_of_slow_bfloat16
from vecenv.core.collector import FusedCollector
from vecenv.core.rows import leaves
from vecenv.learn.evaluation import evaluate
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.planted import planted_bars, random_walk_bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.system import memory
from vecenv.tasks.commands import cli
from vecenv.tasks.crypto_lob.forecasts.fit import fitted_network
from vecenv.tasks.crypto_lob.forecasts.settings import FitSettings
from vecenv.tasks.stock_trading.agents import Hold
from vecenv.worldmodel.data.correlation import matrices_over


def market_of_one_bar_a_day(count: int) -> pd.DataFrame:
    """Return bars of so many symbols, each of a day of its own."""
    days = pd.date_range("1950-01-01", periods=count)
    prices = dict.fromkeys(("open", "high", "low", "close", "volume"), 1.0)
    return pd.DataFrame({"date": days, "symbol": [f"S{number}" for number in range(count)]} | prices)


def test_memory_that_is_left_and_sizes_that_do_not_fit_in_it(tmp_path, monkeypatch, capsys):
    available = memory.available_memory("cpu")
    assert available is not None and 1e8 < available < 1e14
    meminfo, limit, unlimited = (tmp_path / name for name in ("meminfo", "limit", "unlimited"))
    meminfo.write_text("MemTotal:       16000000 kB\nMemAvailable:    8000000 kB\n")
    limit.write_text("4000000000\n")
    unlimited.write_text("max\n")
    monkeypatch.setattr(memory, "_MEMINFO", meminfo)
    monkeypatch.setattr(memory, "_CGROUP_LIMITS", (unlimited, tmp_path / "nowhere"))
    assert memory.available_memory("cpu") == 8_000_000 * 1024
    monkeypatch.setattr(memory, "_CGROUP_LIMITS", (limit, unlimited))
    assert memory.available_memory("cpu") == 4_000_000_000
    memory.check_memory(4_000_000_000, "cpu", "few things")
    words = r"^many things need 4\.1 GB of memory or more, and cpu has 4\.0 GB left: choose fewer$"
    with pytest.raises(ValueError, match=words):
        memory.check_memory(4_100_000_000, "cpu", "many things")
    # Another system: all of its memory; one that tells nothing refuses nothing.
    monkeypatch.setattr(memory, "_CGROUP_LIMITS", ())
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "nowhere")
    pages = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(memory.os, "sysconf", pages.__getitem__)
    assert memory.available_memory("cpu") == 4_096_000
    monkeypatch.setattr(memory.os, "sysconf_names", {})
    assert memory.available_memory("cpu") is None
    memory.check_memory(1 << 60, "cpu", "many things")
    # What PyTorch holds on a device without using it can be used.
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 5000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 700)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 300)
    assert memory.available_memory("cuda") == 1400
    monkeypatch.undo()
    for generator in ("synthetic", "planted", "random_walk", "neural"):
        with pytest.raises(ValueError, match=r"num_paths 1,000,000,000 of [\d,]+ bars each need .* GB of memory"):
            load_market(generator, MarketOptions(num_paths=1_000_000_000))
    for options in ({"num_days": 2 * 10**9}, {"symbols": 2 * 10**9}):
        with pytest.raises(ValueError, match=r"num_paths 8 of [\d,]+,000 bars each need"):
            load_market("random_walk", MarketOptions(**options))
    table = market_of_one_bar_a_day(20_000)
    with pytest.raises(ValueError, match=r"20,000 days of 20,000 symbols need .* GB .*: choose fewer symbols"):
        load_market(table)
    with pytest.raises(ValueError, match=r"the correlations of 100,000 symbols over 1 days need 640\.0 GB"):
        matrices_over(SimpleNamespace(quantities=torch.zeros(1, 1, 10**5, 4), valid=torch.ones(1, 1, 10**5)))
    with pytest.raises(ValueError, match=r"networks of a width \(hidden\) of 1,000,000,000 need"):
        fitted_network(torch.zeros(1, 42), None, None, None, FitSettings(hidden=10**9))
    monkeypatch.setattr(memory, "available_memory", lambda device: 10**7)
    for params in (None, {"commission": torch.zeros(100_000)}):
        with pytest.raises(ValueError, match=r"^100,000 sub-environments need [\d,.]+ GB .*, and cpu has 0\.0"):
            make_env(100_000, params=params)
    with pytest.raises(ValueError, match=r"^20,000 steps of 8 sub-environments need"):
        FusedCollector(make_env(8), None, 20_000)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.setattr(memory, "available_memory", lambda device: 10**10)
    assert cli.main(["train", "--market", "synthetic", "--num-paths", "1000000", "--device", "cpu"]) == cli.BAD_INPUT
    captured = capsys.readouterr()
    assert "vecenv train: error: num_paths 1,000,000 of 11,340 bars each need" in captured.err
    assert "Traceback" not in captured.err and captured.out == "" and not list((tmp_path / "empty").iterdir())


def test_the_estimates_are_of_what_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lies between the smallest part of it that must be held and some times the whole."""
    asked: list[int] = []
    for module in ("market.synthetic", "core.episode_rows", "learn.evaluation"):
        monkeypatch.setattr(f"vecenv.{module}.check_memory", lambda needed, device, what: asked.append(needed))
    for generate in (synthetic_bars, planted_bars, random_walk_bars):
        bars = generate(2, 30, 3)
        assert bars.ohlcv.nbytes <= asked.pop() <= 40 * bars.ohlcv.nbytes and not asked
    env = make_env(8)
    held = sum(leaf.nbytes for leaf in leaves(env.rows)) + 8 * sum(env.block_widths) * 4
    assert held <= asked.pop() <= 10 * held and not asked
    curves = evaluate(env, {"hold": Hold()}).records["hold"].curves
    assert curves.equity.nbytes <= asked.pop() <= 4 * curves.equity.nbytes


def test_devices_by_name_and_those_that_are_not_there(monkeypatch):
    assert device_named("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert device_named("cpu") == torch.device("cpu")
    for name, words in (
        ("abacus", "unknown device 'abacus'; use cpu, cuda or auto"),
        ("meta", "nothing runs on a device 'meta' here"),
        ("cuda:99", r"there is no device cuda:99 here; PyTorch sees \d+ CUDA devices"),
    ):
        with pytest.raises(ValueError, match=words):
            device_named(name)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [device_named(name).index for name in ("cuda", "cuda:1")] == [None, 1]
    with pytest.raises(ValueError, match="no device cuda:2 here; PyTorch sees 2"):
        device_named("cuda:2")
    for kind, name, warned in (("AVX2", "cpu", True), ("AVX512", "cpu", False), ("AVX2", "cuda", False)):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda kind=kind: kind)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            warn_of_slow_bfloat16(torch.device(name), "--precision bfloat16")
        words = "--precision bfloat16: this CPU (AVX2) emulates bfloat16, much slower than float32"
        assert [str(each.message) for each in told] == [words] * warned
