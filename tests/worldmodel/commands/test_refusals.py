"""Faults of the commands' settings are told in a sentence before any work, and leave nothing behind."""

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tests.worldmodel.neural_market import save_judged_model, write_market
from vecenv.market.bar_form import FormSettings
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.synthetic import synthetic_bars
from vecenv.tasks.commands.cli import BAD_INPUT, main
from vecenv.worldmodel.commands.fit import _ends, fit
from vecenv.worldmodel.commands.generate import generate
from vecenv.worldmodel.commands.settings import FitSettings, GenerateSettings, TrainSettings
from vecenv.worldmodel.commands.train import _default_ends, train
from vecenv.worldmodel.commands.validate import _check, _learned, validate
from vecenv.worldmodel.network.settings import RUNNING_MEAN_CHAIN, CnnGruSettings, TransformerSettings
from vecenv.worldmodel.sampling.generator import model_bars
from vecenv.worldmodel.validation.settings import ValidateSettings

FAULTS = (ValueError, FileNotFoundError)


@pytest.fixture
def base(validated_file, ends, started_model, tmp_path) -> dict[Callable, Any]:
    out, model = tmp_path / "m.safetensors", str(started_model)
    dates = {"train_end": ends[0], "validation_end": ends[1]}
    return {
        fit: FitSettings(validated_file, out=out, init=model),
        train: TrainSettings((validated_file,), out=out),
        generate: GenerateSettings(tmp_path / "paths", model, validated_file, "one"),
        validate: ValidateSettings(validated_file, tmp_path / "out", discriminator_seeds=0, **dates),
    }


@pytest.mark.parametrize(
    ("run", "changes", "told"),
    [
        (fit, {"out": Path("m.pt")}, r"m\.pt: a file that ends in \.safetensors, in a folder that exists, is needed"),
        (fit, {"steps": 0}, "steps must be at least 1, got 0"),
        (fit, {"learning_rate": float("inf")}, "learning_rate must be positive and finite, got inf"),
        (fit, {"embargo": -1}, "embargo must not be negative, got -1"),
        (fit, {"embargo": 350}, "prices.parquet: 390 days, 0 to train on"),
        (train, {"market": ()}, "market must have at least 1, got"),
        (train, {"market": (Path("x/a"), Path("a"))}, "two markets have the same name: a, a"),
        (train, {"train_end": ("2011-01-03",)}, "give both train_end and validation_end, or neither"),
        (train, {"train_end": ("2011",) * 2, "validation_end": ("2011",)}, "train_end has 2 entries for 1"),
        (train, {"train_end": ("1999-01-01",), "validation_end": ("2000-01-01",)}, "its days run from 2010-01-04"),
        (train, {"network": TransformerSettings(1), "architecture": "cnn-gru"}, "'cnn-gru' has no transformer, but"),
        (train, {"cnn_gru": CnnGruSettings(width=64)}, r"'joint' has no CNN\+GRU, but sizes of one are given"),
        (generate, {"drawdown": "0"}, "drawdown must be a share between 0 and 100%, such as 30% or 0.3, got '0'"),
        (generate, {"drawdown": "30%", "paths": 19}, "paths must be at least 20 with a drawdown, got 19"),
        (generate, {"drawdown": "99%", "paths": 20, "days": 2}, "no path comes to a drawdown of 99% within 2 days"),
        (generate, {"market": None}, "knows the markets one, two; choose one with --market"),
        (generate, {"keep": -1}, "keep must not be negative, got -1"),
        (generate, {"temperature": float("nan")}, "temperature must be positive and finite, got nan"),
        (generate, {"history": None, "start": "2010-12-31"}, "start is the last date of a history, and none is given"),
        (validate, {"draws": 198}, "draws must be at least 199, got 198"),
        (validate, {"long_paths": 0}, "long_paths must be at least 1, got 0"),
        (validate, {"discriminator_seeds": -1}, "discriminator_seeds must not be negative, got -1"),
        (validate, {"seeds": 0}, "seeds must be at least 1, got 0"),
        (validate, {"memory": 250}, "memory must be at least 251, got 250"),
        (validate, {"max_symbols": 1}, "max_symbols must be at least 2, got 1"),
        (validate, {"temperatures": (1.0, -1.0)}, r"temperatures\[1\] must be positive, got -1.0"),
        (validate, {"temperatures": (0.5,)}, "temperatures are of a model, and none is given"),
        (validate, {"long_days": 41}, "long_days must be 0 or at least 42, got 41"),
        (validate, {"long_days": 111}, "110 test days, long_days=111"),
        (validate, {"out": Path(__file__)}, "a folder is needed"),
        (validate, {"discriminator_seeds": 1, "validation_end": "2011-04-07"}, "1 origins in each half"),
    ],
)
def test_faults_are_told_before_any_work(base, tmp_path, run, changes, told):
    with pytest.raises(FAULTS, match=told):
        run(replace(base[run], **changes))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("run", [fit, train, generate, validate, model_bars])
def test_files_are_read_in_the_form_that_is_told(base, started_model, tmp_path, run):
    """In dates, columns and zone; what is refused next is that there are few days, or not the symbol."""
    path = write_market(tmp_path / "prices.parquet", synthetic_bars(1, 6, ["AA", "BB"], seed=0))
    table = pd.read_parquet(path).rename(columns={"close": "last day's"})
    table.assign(date=table["date"].dt.strftime("%m/%d/%Y 20:00+00:00")).to_parquet(path)

    def refused(**form) -> str:
        with pytest.raises(FAULTS) as told:
            if run is model_bars:
                options = MarketOptions(symbols=["AA", "BB"], generator={"history": path}, **form)
                load_market(started_model, options)
            else:
                file = {"market": path if run is fit else (path,)} if run in (fit, train) else {"history": path}
                file |= {"symbols": ("CC",)} if run is generate else {}
                own = {"form": FormSettings(**form)} if run is generate else form
                run(replace(base[run], **file, **own))
        return str(told.value)

    form = {"columns": ("close=last day's",)}
    assert "--columns close=NAME" in refused() and "date_format (--date-format)" in refused(**form)
    few = refused(**form, timezone="Asia/Tokyo", date_format="%m/%d/%Y %H:%M%z")
    assert re.search(
        "6 days, 0 to train on|its days run from 2010-01-05 to|after 252 such days|unknown symbols CC", few
    )


def test_full_folders_scikit_learn_and_emulated_products(base, tmp_path, monkeypatch, capsys):
    (tmp_path / "kept.txt").write_text("mine")
    with pytest.raises(ValueError, match="the folder is not empty"):
        generate(replace(base[generate], out=tmp_path))
    assert [file.name for file in tmp_path.iterdir()] == ["kept.txt"]
    least = {"paths": 2, "draws": 199, "long_paths": 1, "seeds": 1, "memory": 251, "max_symbols": 2, "long_days": 42}
    _check(replace(base[validate], **least))
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    with pytest.raises(ImportError, match=r"pip install 'vecenv\[validate\]'"):
        validate(replace(base[validate], discriminator_seeds=1))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    words = ["--market", str(tmp_path / "none.parquet"), "--out", str(tmp_path / "m.safetensors"), "--device", "cpu"]
    for bf16 in (["--bf16"], []):
        assert main(["worldmodel", "train", *words, *bf16]) == BAD_INPUT
        assert ("--bf16: this CPU (AVX2) emulates bfloat16" in capsys.readouterr().err) == bool(bf16)


def test_days_and_steps_by_default_and_the_fewest():
    """The last 15% validate, at least sixty days; more than 120 days are needed before the embargo."""

    def ends_of(days, **changes):
        bars = synthetic_bars(1, days, 2, seed=0)
        found = _ends(bars, FitSettings(Path(), out=Path(), **changes))
        return tuple(int(np.searchsorted(bars.dates, np.datetime64(end))) for end in found)

    assert ends_of(500) == (424, 499) and ends_of(201) == (140, 200)
    with pytest.raises(ValueError, match="200 days, 120 to train on until 2010-07-16 less an embargo of 20, and 60 to"):
        ends_of(200)
    dates = synthetic_bars(1, 201, 1).dates
    assert ends_of(201, train_end=str(dates[140]), embargo=0) == (140, 200)
    with pytest.raises(ValueError, match=r"122 to train on until .* of 20, and 59 to validate on"):
        ends_of(201, train_end=str(dates[141]))
    bars = synthetic_bars(1, 340, 3, seed=0)
    bars.ohlcv[0, torch.arange(340)[:, None] % 3 != torch.arange(3)] = float("nan")
    assert _default_ends(bars) == (str(bars.dates[237]), str(bars.dates[271]))
    with pytest.raises(ValueError, match="no symbol has more than 120 bars in its 260 days of training"):
        _ends(bars, FitSettings(Path(), out=Path()))
    fine, nothing = (FitSettings(Path(), out=Path(), init=init).training() for init in ("judged", "none"))
    assert (fine.steps, fine.learning_rate, nothing.steps, nothing.learning_rate) == (480, 5e-5, 300, 1e-3)
    told = FitSettings(Path(), out=Path(), steps=7, learning_rate=0.5, evaluate_every=3, patience=2, seed=9).training()
    assert (told.steps, told.learning_rate, told.evaluate_every, told.patience, told.seed) == (7, 0.5, 3, 2, 9)


def test_models_of_a_validation(ends, tmp_path):
    joint = save_judged_model(tmp_path / "m.safetensors", ends)
    chain = save_judged_model(tmp_path / "c.safetensors", ends, "running mean")
    late = save_judged_model(tmp_path / "late.safetensors", (ends[1], "2024-01-02"), "none")

    def learned(model=(joint,), beside=(), **more):
        names = {"model": tuple(map(str, model)), "beside": tuple(map(str, beside))}
        return _learned(ValidateSettings(tmp_path, tmp_path, **names, **({"market": "a"} | more)))

    found, *dates = learned((joint, joint), (chain,), temperature=0.5)
    assert [[model.name for model in same] for same in found] == [["neural"] * 2, [RUNNING_MEAN_CHAIN]]
    assert [same[0].temperature for same in found] == [0.5, 1.0] and dates == list(ends)
    for given, told in (
        ({"market": None}, f"{joint} knows the markets a, b; choose one with --market"),
        ({"market": "b"}, f"{joint} does not say when its training ended; give train_end"),
        ({"train_end": "2010-01-01", "validation_end": "2010-06-01"}, f"chosen on days up to {ends[1]}"),
        ({"model": ()}, "without a model, train_end and validation_end are needed"),
        ({"model": (joint, chain)}, f"{chain}: the architecture '{RUNNING_MEAN_CHAIN}', that of {joint} is 'neural'"),
        ({"beside": ("shipped",)}, "shipped.safetensors: unknown market 'a'"),
        ({"beside": (joint,)}, f"{joint}: a second model of the name 'neural'; each architecture is judged once"),
        ({"beside": (chain, late)}, f"{late} was chosen on days up to 2024-01-02: the test cannot start after"),
    ):
        with pytest.raises(FAULTS) as error:
            learned(**given)
        assert told in str(error.value)
    alone, *_ = learned((), (chain,), train_end=ends[0], validation_end=ends[1])
    assert [model.name for (model,) in alone] == [RUNNING_MEAN_CHAIN]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("train --out m.pt --market x.parquet", "ends in .safetensors"),
        ("fit --market x.parquet --out m.safetensors", "x.parquet: there is no such file"),
        ("generate --out paths --paths 0", "paths must be at least 1, got 0"),
        ("validate --history x.parquet --out out --paths 1", "paths must be at least 2, got 1"),
        ("train --out m.safetensors --market x.parquet --bars.steps -1", "bars: steps must not be negative, got -1"),
        ("describe --model juged", "juged: no checkpoint"),
    ],
)
def test_every_command_tells_its_faults_in_a_line(words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["worldmodel", *words.split()]) == BAD_INPUT
    assert told in capsys.readouterr().err and not list(tmp_path.iterdir())
