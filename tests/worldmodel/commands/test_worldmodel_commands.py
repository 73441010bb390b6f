"""``vecenv worldmodel``: train, go on, generate, and refusals before any work."""

from __future__ import annotations

import errno
import json

import numpy as np
import pandas as pd
import pytest
import torch

from vecenv.market.sources import read_bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.tasks.commands.cli import BAD_INPUT, INTERRUPTED, main
from vecenv.worldmodel.commands import train as train_command
from vecenv.worldmodel.commands.train import running_path
from vecenv.worldmodel.network.checkpoint import load_network, save_network
from vecenv.worldmodel.network.market_network import MarketNetwork
from vecenv.worldmodel.sampling.generator import PathOptions, draw_paths

SMALL = (
    *("--network.layers", "1", "--network.width", "16", "--network.heads", "2", "--network.hidden", "32"),
    *("--network.window", "8", "--days", "32", "--evaluate-every", "2", "--bars.steps", "2"),
)


def write_market(path, seed=0, days=320):
    bars = synthetic_bars(1, days, 4, seed=seed)
    table = pd.DataFrame(bars.ohlcv[0].reshape(-1, 5).numpy(), columns=["open", "high", "low", "close", "volume"])
    table.insert(0, "symbol", np.tile(bars.symbols, days))
    table.insert(0, "date", np.repeat(bars.dates, 4))
    table["currency"] = "EUR"
    table.sort_values(["symbol", "date"]).to_parquet(path, index=False)
    return path


@pytest.fixture(scope="module")
def market(tmp_path_factory):
    return write_market(tmp_path_factory.mktemp("market") / "prices.parquet")


def train(market, out, *words):
    return main(["worldmodel", "train", "--market", str(market), "--out", str(out), *SMALL, *words])


@pytest.fixture(scope="module")
def model(market, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    result = folder / "result.json"
    assert train(market, folder / "m.safetensors", "--steps", "4", "--json", str(result)) == 0
    return folder / "m.safetensors", json.loads(result.read_text())


@pytest.mark.assembly
def test_training_writes_a_network_with_its_data_and_split(model, market):
    path, result = model
    assert path.exists() and not running_path(path).exists()
    assert [entry["step"] for entry in result["history"]] == [2, 4]
    assert [entry["step"] for entry in result["bar_history"]] == [0, 2]
    source = result["sources"]["prices"]
    bars = read_bars(market)
    assert source["file"] == "prices.parquet" and source["symbols"] == list(bars.symbols)
    assert source["currency"] == "EUR"
    assert source["train_end"] == str(bars.dates[223]) and source["validation_end"] == str(bars.dates[255])


@pytest.mark.parametrize(
    ("architecture", "sizes", "told"),
    [
        ("running-mean", SMALL[:10], ("running mean", "student-t", 16)),
        pytest.param("published", SMALL[:10], ("none", "gaussian", 16), marks=pytest.mark.nightly),
        pytest.param(
            "cnn-gru",
            ("--cnn-gru.channels", "8", "--cnn-gru.width", "12"),
            ("none", "gaussian", 12),
            marks=pytest.mark.nightly,
        ),
    ],
)
@pytest.mark.nightly
def test_every_architecture_is_trained_and_drawn_from(market, tmp_path, architecture, sizes, told):
    """Its weights are not those it started with, and the file serves as any other."""
    out, words = tmp_path / "m.safetensors", ("--market", str(market), "--out", str(tmp_path / "m.safetensors"))
    steps = (*SMALL[10:], "--steps", "2")
    assert main(["worldmodel", "train", *words, "--architecture", architecture, *sizes, *steps]) == 0
    network = load_network(out).network
    assert (network.settings.joint, network.settings.density, network.settings.trunk.width) == told
    torch.manual_seed(0)
    begun = MarketNetwork(network.settings).state_dict()
    assert all(
        not torch.equal(begun[name], tensor) for name, tensor in network.trunk.state_dict(prefix="trunk.").items()
    )
    assert generate(out, market, tmp_path / "paths", "--paths", "1", "--days", "2") == 0


@pytest.fixture
def interrupted(market, tmp_path, monkeypatch):
    """Folder of a run that was interrupted after two of four steps."""

    def save_and_stop(path, *rest):
        save_network(path, *rest)
        raise KeyboardInterrupt

    out = tmp_path / "m.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(train_command, "save_network", save_and_stop)
        assert train(market, out, "--steps", "4") == INTERRUPTED
    assert running_path(out).exists() and not out.exists()
    return out


@pytest.mark.nightly
def test_an_interrupted_run_goes_on_to_the_same_network(model, market, interrupted):
    assert train(market, interrupted, "--steps", "4", "--resume") == 0
    whole, resumed = (load_network(path).network.state_dict() for path in (model[0], interrupted))
    assert all(bool((whole[name] == resumed[name]).all()) for name in whole)


@pytest.mark.assembly
def test_a_run_goes_on_with_its_own_settings_and_data_alone(market, interrupted, capsys):
    assert train(market, interrupted, "--steps", "6", "--resume") == BAD_INPUT
    assert "its settings are not those of this command" in capsys.readouterr().err
    other = write_market(interrupted.parent / "prices.parquet", seed=1)
    assert train(other, interrupted, "--steps", "4", "--resume") == BAD_INPUT
    assert "its sources are not those of this command" in capsys.readouterr().err
    assert train(market, interrupted, "--steps", "4", "--network.hidden", "64", "--resume") == BAD_INPUT
    assert "other sizes" in capsys.readouterr().err
    assert train(market, interrupted, "--steps", "4", "--architecture", "published", "--resume") == BAD_INPUT
    assert "its network is another" in capsys.readouterr().err
    assert train(market, interrupted.parent / "none.safetensors", "--resume") == BAD_INPUT
    assert "none.running.safetensors" in capsys.readouterr().err


@pytest.mark.assembly
def test_a_run_with_tensors_or_a_record_of_others_is_refused(market, interrupted, capsys):
    running = running_path(interrupted)
    saved = load_network(running)
    name = next(name for name in saved.extra if name.startswith("average."))
    moment = next(name for name in saved.extra if name.endswith(".exp_avg"))
    for record, extra, told in (
        ({}, {name: torch.zeros(3)}, f"its state.{name} is float32 of shape (3,) instead of"),
        ({}, {name: None}, f"its state lacks {name}"),
        ({}, {moment: torch.zeros(3)}, "its optimiser.state.0.exp_avg is float32 of shape (3,) instead of"),
        ({}, {"optimizer.x": torch.zeros(3)}, "its optimiser.state also has x"),
        ({"step": "two"}, {}, "its record.step is str instead of a number"),
        ({"history": None}, {}, "its record.history is nothing instead of list"),
    ):
        tensors = {name: tensor for name, tensor in (saved.extra | extra).items() if tensor is not None}
        save_network(running, saved.network, saved.record | record, tensors)
        assert train(market, interrupted, "--steps", "4", "--resume") == BAD_INPUT
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"vecenv worldmodel: error: {running}: {told}")


def test_a_full_disk_ends_training_in_a_sentence_that_names_what_is_kept(market, tmp_path, monkeypatch, capsys):
    def full(path, network, record, extra):
        if record["step"] == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        save_network(path, network, record, extra)

    out = tmp_path / "m.safetensors"
    monkeypatch.setattr(train_command, "save_network", full)
    assert train(market, out, "--steps", "4") == BAD_INPUT
    kept = f"the checkpoint of step 2, {running_path(out)}, is kept"
    assert capsys.readouterr().err == f"vecenv worldmodel: error: {tmp_path}: the disk is full; {kept}\n"
    assert list(tmp_path.iterdir()) == [running_path(out)]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--names", "a", "b"), "names has 2 entries for 1 markets"),
        (("--train-end", "2011-01-03"), "both train_end and validation_end"),
        (("--train-end", "1999-01-01", "--validation-end", "2000-01-01"), "its days run from 2010-01-04"),
        (("--out", "folder/that/is/not/there.safetensors"), "in a folder that exists"),
        (("--out", "m.pt"), "ends in .safetensors"),
        (("--architecture", "cnn-gru"), "'cnn-gru' has no transformer, but sizes of one are given"),
        (("--cnn-gru.width", "64"), "'joint' has no CNN+GRU, but sizes of one are given"),
        (("--cnn-gru.kernel", "0"), "kernel must be at least 1, got 0"),
    ],
)
def test_faults_of_training_are_told_before_it_starts(market, tmp_path, words, told, capsys):
    assert train(market, tmp_path / "m.safetensors", *words) == BAD_INPUT
    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def generate(model, market, out, *words):
    return main(["worldmodel", "generate", "--model", str(model), "--history", str(market), "--out", str(out), *words])


def test_products_that_the_cpu_emulates_are_told_before_the_file_is_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    words = ["--market", str(tmp_path / "none.parquet"), "--out", str(tmp_path / "m.safetensors"), "--device", "cpu"]
    for bf16 in (["--bf16"], []):
        assert main(["worldmodel", "train", *words, *bf16]) == BAD_INPUT
        assert ("--bf16: this CPU (AVX2) emulates bfloat16" in capsys.readouterr().err) == bool(bf16)


def test_generated_paths_are_markets_that_go_on_from_the_history(model, market, tmp_path):
    out = tmp_path / "paths"
    words = ("--paths", "2", "--days", "15", "--keep", "30", "--start", "2010-12-31")
    assert generate(model[0], market, out, *words) == 0
    assert sorted(file.name for file in out.iterdir()) == ["path_0000.parquet", "path_0001.parquet"]
    history = read_bars(market, end="2010-12-31")
    first, second = (read_bars(file) for file in sorted(out.iterdir()))
    assert first.currency == "EUR" and len(first.dates) == 45 and first.dates[29] == history.dates[-1]
    assert bool((first.ohlcv[0, :30] == history.ohlcv[0, -30:]).all())
    assert bool((first.ohlcv[0, 30:] != second.ohlcv[0, 30:]).any())
    moved = (first.ohlcv[0, 30, :, 3] / history.ohlcv[0, -1, :, 3]).log().abs()
    assert float(moved.max()) < 0.5


def test_generated_paths_need_no_history(model, tmp_path):
    out = tmp_path / "paths"
    words = ("--symbols", "SYN02", "SYN00", "--paths", "2", "--days", "3", "--keep", "30")
    assert main(["worldmodel", "generate", "--model", str(model[0]), "--out", str(out), *words]) == 0
    generated = draw_paths(model[0], PathOptions(2, 255, ["SYN02", "SYN00"]))
    for path, file in enumerate(sorted(out.iterdir())):
        written = read_bars(file, ["SYN02", "SYN00"])
        assert bool((written.ohlcv[0] == generated.ohlcv[path, -33:]).all())
    assert (
        main(["worldmodel", "generate", "--model", str(model[0]), "--out", str(out / "b"), "--start", "2010-12-31"])
        == 2
    )


@pytest.mark.filterwarnings("ignore:.*emulates bfloat16")
@pytest.mark.parametrize("after", [True, False])
def test_paths_are_generated_in_bfloat16(model, market, tmp_path, after):
    """After a history and without one, other paths than in float32 that begin alike."""
    words = ["--paths", "1", "--days", "3", "--keep", "5"]
    words += ["--history", str(market)] if after else ["--symbols", "SYN00", "SYN01"]
    closes = []
    for name, more in (("exact", ()), ("halved", ("--bf16",))):
        out = ["--model", str(model[0]), "--out", str(tmp_path / name)]
        assert main(["worldmodel", "generate", *out, *words, *more]) == 0
        closes.append(read_bars(tmp_path / name / "path_0000.parquet").ohlcv[0, :, :, 3])
    assert bool((closes[0][:5] == closes[1][:5]).all())
    assert 0 < float((closes[0] / closes[1]).log().abs().max()) < 0.005


@pytest.mark.filterwarnings("ignore:.*looks like an unadjusted split")
@pytest.mark.parametrize("after", [True, False])
@pytest.mark.assembly
def test_stress_paths_fall_as_far_and_have_weights(model, market, tmp_path, capsys, after):
    """After a history and without one."""
    out = tmp_path / "paths"
    words = ("--drawdown", "6%", "--paths", "20", "--days", "15", "--keep", "30", "--out", str(out))
    history = ("--history", str(market), "--start", "2010-12-31") if after else ()
    assert main(["worldmodel", "generate", "--model", str(model[0]), *history, *words]) == 0
    weights = json.loads((out / "weights.json").read_text())
    names = sorted(file.name for file in out.glob("*.parquet"))
    assert list(weights["paths"]) == names and len(names) == 20
    assert weights["drawdown"] == 0.06 and weights["days"] == 15
    assert sum(path["weight"] for path in weights["paths"].values()) == pytest.approx(weights["probability"])
    assert weights["interval_95"][0] <= weights["probability"] <= weights["interval_95"][1]
    assert weights["probability"] == pytest.approx(
        np.prod([row["reached"] / row["paths"] for row in weights["levels"]])
    )
    for name, path in weights["paths"].items():
        bars = read_bars(out / name)
        level = bars.ohlcv[0, 29:, :, 3].log().mean(-1)
        falls = 1 - (level - level.cummax(0).values).exp()
        assert len(bars.dates) == 45 and str(bars.dates[29 + int((falls >= 0.06).long().argmax())]) == path["reached"]
        assert float(falls.max()) >= 0.06
    told = capsys.readouterr().out
    assert "6.0% drawdown: reached by" in told and "6.0% drawdown within 15 days: probability" in told
    assert read_bars(out / names[0]).currency == "EUR"


def test_an_impossible_drawdown_leaves_no_files(model, market, tmp_path, capsys):
    words = ("--drawdown", "99%", "--paths", "20", "--days", "2")
    assert generate(model[0], market, tmp_path / "paths", *words) == BAD_INPUT
    assert "no path comes to a drawdown of 99% within 2 days, at most to" in capsys.readouterr().err
    assert not list((tmp_path / "paths").glob("path_*"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--drawdown", "0"), "drawdown must be a share between 0 and 100%, such as 30% or 0.3, got '0'"),
        (("--drawdown", "100%"), "got '100%'"),
        (("--drawdown", "deep"), "got 'deep'"),
        (("--drawdown", "30%", "--paths", "5"), "paths must be at least 20 with a drawdown, got 5"),
        (("--market", "moon"), "unknown market 'moon'"),
        (("--symbols", "NONE"), "NONE"),
        (("--paths", "0"), "paths must be at least 1"),
        (("--temperature", "0"), "temperature must be positive"),
        (("--model", "absent.safetensors"), "absent.safetensors"),
    ],
)
def test_faults_of_generation_are_told_before_it_starts(model, market, tmp_path, words, told, capsys):
    assert generate(model[0], market, tmp_path / "paths", *words) == BAD_INPUT
    assert told in capsys.readouterr().err
    assert not (tmp_path / "paths").exists()


def test_a_folder_with_files_is_left_alone(model, market, tmp_path, capsys):
    (tmp_path / "kept.txt").write_text("mine")
    assert generate(model[0], market, tmp_path) == BAD_INPUT
    assert "not empty" in capsys.readouterr().err and [file.name for file in tmp_path.iterdir()] == ["kept.txt"]
