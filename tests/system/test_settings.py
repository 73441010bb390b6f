"""Settings: what annotations allow, and what any value of any setting of any task does."""

import math
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from random import Random
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from vecenv.core.scenario import flat_view
from vecenv.registry import make, task_named, task_names
from vecenv.system.memory import TooLittleMemoryError
from vecenv.system.settings import Count, Items, Positive, Seed, Settings, Share, Within

INFINITY, NAN = math.inf, math.nan


@dataclass(frozen=True)
class Everything(Settings):
    positive: Positive = 1.0
    choice: Literal["x", 3] | None = "x"
    rates: Share | tuple[Share, ...] = 0.0
    pair: tuple[int, str] = (1, "a")
    sizes: Annotated[tuple[Count, ...], Items(1, 3, distinct=True)] = (1,)
    weights: dict[str, float] = field(default_factory=dict)
    limit: Annotated[float, Within(high=INFINITY)] = 0.0
    low: Annotated[float, Within(-2, above=True)] = 0.0
    seed: Seed = 0
    file: Path | None = None
    flag: bool = False


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("positive", 0, "positive must be positive, got 0"),
        ("positive", INFINITY, "positive must be positive and finite, got inf"),
        ("positive", 10**400, "positive must be at most 1e+12, got 1000"),
        ("positive", "1", "positive must be a number, got '1'"),
        ("positive", True, "positive must be a number, got True"),
        ("choice", "y", "unknown choice 'y'; there are x, 3"),
        ("choice", 3.0, "unknown choice 3.0; there are x, 3"),
        ("rates", (0.5, NAN), "rates[1] must be in [0, 1], got nan"),
        ("rates", (0.5, "x"), "rates[1] must be a number, got 'x'"),
        ("rates", None, "rates must be a number or a sequence, got None"),
        ("pair", (1,), "pair must have 2 items, got (1,)"),
        ("pair", (1, 2), "pair[1] must be text, got 2"),
        ("sizes", (), "sizes must have at least 1, got ()"),
        ("sizes", [1, 2, 3, 4], "sizes must have at most 3, got [1, 2, 3, 4]"),
        ("sizes", [1, 1], "sizes must be different, got [1, 1]"),
        ("sizes", (2**31,), "sizes[0] must be at most 2,147,483,647, got 2147483648"),
        ("weights", {"a": -INFINITY}, "weights['a'] must be a finite number, got -inf"),
        ("weights", [1], "weights must be values by name, got [1]"),
        ("limit", NAN, "limit must be a number, got nan"),
        ("low", -2.0, "low must be above -2, got -2.0"),
        ("seed", 2**63, "seed must be in [0, 2^63), got 9223372036854775808"),
        ("file", 3, "file must be text or None, got 3"),
        ("flag", 1, "flag must be True or False, got 1"),
    ],
)
def test_what_an_annotation_excludes_is_named(name, value, told):
    with pytest.raises(ValueError) as error:
        Everything(**{name: value})
    assert str(error.value).startswith(told)


def test_values_are_kept_as_python_has_them():
    given = {"positive": np.float32(0.5), "sizes": [np.int64(2), 3], "flag": np.bool_(True), "file": "a", "rates": 1}
    settings = Everything(**given, limit=INFINITY, choice=None)
    assert settings == Everything(0.5, None, 1, sizes=(2, 3), limit=INFINITY, file=Path("a"), flag=True)
    assert [type(own) for own in (settings.positive, settings.sizes[0], settings.flag)] == [float, int, bool]


TENSORS = [name for name in task_names() if task_named(name).scenario is not None]
ODD = ("x", "", NAN, INFINITY, -INFINITY, -1, -1.5, 0, 1e300, -1e300, 1e-300, 1e12, 10**18, 2**31, 1_000_003, ())
ODD += ((NAN,), (0, INFINITY), (0.5, -1), None, True, False, {"x": NAN}, 0.5, 1)
CHEAP = {"crypto_lob": {"synthetic_hours": 2.0, "episode_steps": 20}}
CHEAP |= {"shop": {"products": 100}}
CHEAP |= {name: {"episode_length": 20} for name in ("stock_trading", "signals")}
GROWS = {"clearing", "max_ticks", "warm_up_ticks", "candle_ticks", "tick_seconds", "num_noise", "num_levels"}
"""Settings whose large values take seconds."""
NAMES = {"book", "forecasts", "symbol", "currency", "market", "problems", "pool", "catalogue", "levels"}
NAMES |= {"weights_model", "weights_log"}
UNBOUNDED = {("gate_threshold", INFINITY)}
"""All settings that take any word, and all infinities that mean something; no other is played under some other rule."""


def cheap(name):
    return replace(task_named(name).config(), **CHEAP.get(name, {}))


def odd_configs(name):
    """Return the configs of a task that take an odd value, by setting and value; the others name their setting."""
    taken, config = [], cheap(name)
    for item in fields(config):
        for value in ODD:
            try:
                taken.append((item.name, value, replace(config, **{item.name: value})))
            except (ValueError, TypeError) as error:
                assert item.name in str(error) and "\n" not in str(error), (item.name, value, error)
                continue
            inner = value if isinstance(value, tuple) else (value,)
            odd = [one for one in inner if one == "x" or (isinstance(one, float) and not math.isfinite(one))]
            assert not odd or (item.name, value) in UNBOUNDED or item.name in NAMES, (item.name, value)
    return taken


def check_played(name, setting, value, config, drawn=()):
    """Play two steps: all numbers are finite, unless the market or the memory refuses a setting by its name."""
    task = task_named(name)
    options = {} if task.market is None else {"market_options": {"num_paths": 2, "num_days": 400}}
    try:
        env = make(task, 2, config=config, compile=False, **options)
    except (ValueError, TypeError) as error:
        words = (setting, str(value), *drawn, *(getattr(config, own) for own in drawn))
        named = any(str(word) in str(error) for word in words) or isinstance(error, TooLittleMemoryError)
        assert named and "\n" not in str(error), (setting, value, error)
        return
    env.reset()
    played = env.rollout(2, break_when_any_done=False)
    shown = {name: own for name, own in env.info().items() if own.is_floating_point()}
    shown |= {"observation": flat_view(env.observations()), "reward": played["next", "reward"], "grade": env.grade()}
    for what, numbers in shown.items():
        assert numbers.isfinite().all(), (setting, value, what)


@pytest.mark.parametrize("name", TENSORS)
def test_any_value_of_a_setting_is_refused_by_its_name_or_gives_finite_numbers(name):
    taken = [case for case in odd_configs(name) if case[0] not in GROWS and case[2] != cheap(name)]
    for case in Random(name).sample(taken, 2):
        check_played(name, *case)


@pytest.mark.parametrize("name", sorted({*task_names()} - {*TENSORS}))
def test_any_value_of_a_setting_of_a_conversation_is_taken_or_refused_by_its_name(name):
    assert odd_configs(name)


@pytest.mark.nightly
@pytest.mark.parametrize("name", TENSORS)
def test_every_value_of_every_setting_under_any_choices(name):
    random, config = Random(name), cheap(name)
    hints = get_type_hints(type(config))
    choices = {own: get_args(hints[own]) for own in vars(config) if get_origin(hints[own]) is Literal}
    for setting, value, odd in odd_configs(name):
        check_played(name, setting, value, odd)
        drawn = {own: random.choice(of) for own, of in choices.items() if own != setting and random.random() < 0.3}
        try:
            other = replace(odd, **drawn)
        except ValueError as error:
            assert setting in str(error) or any(own in str(error) for own in drawn)
            continue
        check_played(name, setting, value, other, drawn)
