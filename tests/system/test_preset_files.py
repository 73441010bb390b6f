"""Presets: files found, read into dataclasses, and refused."""

import json
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Literal

import pytest
import yaml

from vecenv.registry import task_named
from vecenv.system.preset_files import as_values, preset_path, read_values, with_values
from vecenv.tasks.agent_market import execution, market_making, trading
from vecenv.tasks.crypto_lob.config import CryptoLobConfig
from vecenv.tasks.experiment.settings import TrainSettings
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.tasks.tiers.config import TIERS, TierConfig

CONFIGS = Path(__file__).parents[2] / "configs"


@dataclass(frozen=True)
class Inner:
    rate: float | tuple[float, ...] = 0.0
    whole: bool = True

    def __post_init__(self):
        if self.rate == 9:
            raise ValueError("rate must not be 9")


@dataclass(frozen=True)
class Outer:
    name: str = "a"
    count: int = 1
    kind: Literal["x", "y"] = "x"
    day: date | None = None
    place: Path | None = None
    names: tuple[str, ...] = ("a",)
    weights: dict[str, float] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)


UNQUOTED = (("ON", True), ("no", False), ("null", None), ("", None))


def test_values_become_those_of_the_fields_or_are_refused_by_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for text, expected in (
        ("", Outer()),
        ("name: b\ncount: 1_000", Outer(name="b", count=1000)),
        ("day: 2020-01-02\nplace: a/b", Outer(day=date(2020, 1, 2), place=Path("a/b"))),
        ("day: null\nnames: []\nweights: {}\ninner:", Outer(names=())),
        ("names: [b, c]\nkind: y", Outer(names=("b", "c"), kind="y")),
        ("weights: {a: 1, b c: -0.5}", Outer(weights={"a": 1.0, "b c": -0.5})),
        # YAML 1.1 takes 1e-4 for a text.
        ("inner: {rate: 1e-4}", Outer(inner=Inner(rate=1e-4))),
        ("inner: {rate: -0.5, whole: no}", Outer(inner=Inner(rate=-0.5, whole=False))),
        ("inner: {rate: [0.1, 0.2]}", Outer(inner=Inner(rate=(0.1, 0.2)))),
        ("nme: b", "a.yaml: unknown settings nme (did you mean name?); there are name, count"),
        ("inner: {rte: 1}", "a.yaml: inner: unknown settings rte (did you mean rate?); there are rate, whole"),
        ("count: 1.5", "a.yaml: count: 1.5 is not of the type int"),
        ("kind: z", "a.yaml: kind: 'z' is not of the type Literal"),
        ("inner: {whole: 3}", "a.yaml: inner: whole: 3 is not of the type bool"),
        ("inner: {rate: 9}", "a.yaml: inner: rate must not be 9"),
        *((f"name: {word}", f"a.yaml: name: {read} is no text; a name such as ON") for word, read in UNQUOTED),
        ("names: [A, ON]", "a.yaml: names: True is no text"),
        ("inner: 3", "a.yaml: inner: settings by name are needed, got 3"),
        ("names: [[b]]", "a.yaml: names: [['b']] is not of the type tuple[str, ...]"),
        ("names: {b: 1}", "a.yaml: names: {'b': 1} is not of the type tuple[str, ...]"),
        ("name: [b]", "a.yaml: name: ['b'] is not of the type str"),
        ("name: {b: 1}", "a.yaml: name: {'b': 1} is not of the type str"),
        ("count: [1, 2]", "a.yaml: count: [1, 2] is not of the type int"),
        ("weights: {a: b}", "a.yaml: weights: {'a': 'b'} is not of the type dict[str, float]"),
        ("weights: [a, 1]", "a.yaml: weights: ['a', 1] is not of the type dict[str, float]"),
        ("weights: []", "a.yaml: weights: [] is not of the type dict[str, float]"),
        ("- name", "a.yaml: settings by name are needed, got list"),
        ("name: [", "a.yaml: not YAML"),
    ):
        Path("a.yaml").write_text(text)
        if isinstance(expected, Outer):
            assert with_values(Outer(), read_values(Path("a.yaml")), "a.yaml") == expected
        else:
            with pytest.raises(ValueError) as error:
                with_values(Outer(), read_values(Path("a.yaml")), "a.yaml")
            assert expected in str(error.value) and "\n" not in str(error.value)
        assert capsys.readouterr() == ("", "")
    # Written values read back.
    settings = Outer(day=date(2020, 1, 2), place=Path("p"), inner=Inner(rate=(1e-9, 0.2)))
    values = as_values(settings, without=("name",))
    for text in (yaml.safe_dump(values), json.dumps(values)):
        assert with_values(Outer(), yaml.safe_load(text), "text", without=("name",)) == settings
    with pytest.raises(ValueError, match="unknown settings name"):
        with_values(Outer(), {"name": "b"}, "text", without=("name",))
    for config in (*TIERS.values(), TierConfig(reward_weights={"profit": 5.0, "invalid": -1.5})):
        text = yaml.safe_dump(json.loads(json.dumps(as_values(config))))
        assert with_values(TierConfig(), yaml.safe_load(text), "text") == config


def test_every_shipped_preset_fits_its_settings(tmp_path):
    paths = [path for kind in ("train", "task") for path in sorted((CONFIGS / kind).glob("*.yaml"))]
    special = {"planted": (TierConfig(),), "contest2024": (CryptoLobConfig(),)}
    books = (trading.TradingConfig(), execution.ExecutionConfig(), market_making.MarketMakingConfig())
    markets = ("calibrated_market", "liquid_crypto", "liquid_stock", "random_walk_market")
    special |= dict.fromkeys(markets, books)
    assert len(paths) >= 8
    for path in paths:
        assert preset_path(path.parent.name, path.stem).samefile(path)
        if path.parent.name == "train":
            settings = TrainSettings.defaults(["--preset", path.stem])
            assert settings.task == read_values(path).get("task", "stock_trading")
            # The same of the task's name, where it is the default of one.
            assert path.stem != settings.task or settings == TrainSettings.defaults(["--task", path.stem])
        else:
            for config in special.get(path.stem, (StockTradingConfig(),)):
                with_values(config, read_values(path), str(path))
    assert TrainSettings.defaults(["--preset", "default"]) == TrainSettings.defaults([])
    # What other learners have otherwise is in a folder of each, by the names of presets.
    others = sorted((CONFIGS / "train").glob("*/*.yaml"))
    assert {path.parent.name for path in others} == {"a2c", "ddpg", "dqn", "exact", "grpo", "sac", "td3"}
    for path in others:
        values, algorithm = read_values(path), path.parent.name
        settings = TrainSettings.defaults(["--preset", path.stem, "--algorithm", algorithm])
        assert values.get("algorithm", "grpo") == settings.algorithm == algorithm
        if "language" in values:
            # A language model has groups of conversations, and begins by imitation.
            assert values.keys() == {"num_groups", "group_size", "start_episodes", "language"}
        else:
            assert values.keys() == {"algorithm", "learner"}
        own = values.get("learner", values.get("language"))
        assert with_values(settings.learner, own, str(path)) == settings.learner
        # All else is the preset's.
        plain = TrainSettings.defaults(["--preset", path.stem])
        assert (settings.env, settings.source, settings.episodes) == (plain.env, plain.source, plain.episodes)
    # The short form shortens every task and learner.
    for words in (["--task", "execution"], ["--task", "portfolio"], ["--algorithm", "sac"], ["--algorithm", "exact"]):
        short = TrainSettings.defaults(["--preset", "quick", *words])
        assert (short.episodes, short.learner.total_frames) == (200, 65_536)
    # A path is taken as it is; what is not there is refused.
    (tmp_path / "a.yml").write_text("")
    assert preset_path("train", str(tmp_path / "a.yml")) == tmp_path / "a.yml"
    for kind, name, told in (
        ("train", str(tmp_path / "b.yaml"), r"b\.yaml: no such preset file"),
        ("train", "own", r"unknown train preset 'own'; there are agent_market, code, .*costs, .*quick"),
        ("task", "quick", "unknown task preset 'quick'; there are calibrated_market, contest2024, "),
    ):
        with pytest.raises(ValueError, match=told):
            preset_path(kind, name)
    # Presets that belong together have the same rules.
    preset = read_values(preset_path("train", "planted_language"))
    assert preset["env"] == read_values(preset_path("task", "planted"))
    # Bars from a file have a default with costs and a smaller test; a preset of rules stands.
    generated, data = (TrainSettings.defaults(["--market", name]) for name in ("synthetic", "bars.csv"))
    assert (generated.env.commission, data.env.commission) == (0.0, 0.001)
    assert (generated.source.split.test_fraction, data.source.split.test_fraction, data.env.action) == (
        0.334,
        0.2,
        "tilt",
    )
    assert TrainSettings.defaults(["--task-preset", "finrl"]).env.action != "tilt"
    # A preset of tiers fits every tier.
    for preset, rules in (("tiers", ("limit_weights", "grade_potential")), ("tiers_signal", ("discrete", "signal"))):
        for task in (*TIERS, "curriculum"):
            settings = TrainSettings.defaults(["--preset", preset, "--task", task])
            assert (settings.task, settings.env.max_orders, settings.learner.gamma) == (task, 5, 1.0)
            assert (settings.env.action, settings.env.reward) == rules
            assert settings.env.market_symbols == task_named(task).config().market_symbols
