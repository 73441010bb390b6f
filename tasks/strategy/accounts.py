"""Accounts of programs in C++: a day of all programs and paths at a time, with the numbers of the scenario's law."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vecenv.finance.programs import ACCOUNT, account_features, market_features
from vecenv.kernels.orders import fill_prices
from vecenv.kernels.weights import reserved_price
from vecenv.market.bars import CLOSE
from vecenv.programs.evaluation import Plan
from vecenv.programs.expressions import Program
from vecenv.programs.graph import Graph
from vecenv.programs.native import Machine, machine
from vecenv.programs.operations import STRUCTURED
from vecenv.system.native_library import built_library
from vecenv.tasks.stock_trading.law import StockState
from vecenv.tasks.stock_trading.scenario import StockTrading

SOURCE = Path(__file__).with_name("accounts.cpp")

MOST_SYMBOLS = 255
"""Above these the law's sums of weights are not exact in any order."""

_INTEGERS = ("paths", "symbols", "weights", "bars_left")
_NUMBERS = ("commission", "dead_zone", "hmax", "ruin_fraction", "tick_size")
_PRICES = ("fill", "buy", "sell", "next", "shown", "tradable", "reserved")
_MONEY = ("cash", "value", "traded", "refusals", "days", "ended", "start_value")


class Played(NamedTuple):
    """What accounts did: P programs on M paths for L days; money in ticks.

    Attributes:
        value: of the account at the start and after each day. Shape: (L + 1, P, M), float64.
        traded: purchases plus sales of each day. Shape: (L, P, M), float64.
        refusals: as of `Grades`. Shape: (P, M), int64.
        days: that the account was worth something. Shape: (P, M), int64.
        last: the accounts at the end, as far as grades read them. Batch: (P times M,).
        reward: sums of the scenario's rewards, NaN where they are not computed. Shape: (P times M,), float64.
    """

    value: Tensor
    traded: Tensor
    refusals: Tensor
    days: Tensor
    last: Any
    reward: Tensor


class _Rules(ctypes.Structure):
    _fields_ = [*((name, ctypes.c_int64) for name in _INTEGERS), *((name, ctypes.c_double) for name in _NUMBERS)]


class _Day(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in _PRICES]


class _Accounts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in (*_MONEY, "holdings")]


def library() -> ctypes.CDLL | None:
    """Return the accounts in C++, built when they are first asked for; None without a compiler."""
    # Without traps: they would keep choices between numbers from being made by vectors.
    return built_library(SOURCE, "-ffp-contract=off", "-fno-trapping-math")


def in_native_form(scenario: StockTrading) -> bool:
    """Whether the accounts in C++ know the rules: whole shares, long only, by orders or weights, without stops."""
    config, tape = scenario.config, scenario.tape
    known = config.whole_shares and not config.shorting and config.rationing == "pro_rata"
    free = config.action != "tilt" and config.gate == "none" and config.stop_loss == 0
    small = tape.num_symbols <= MOST_SYMBOLS and tape.device.type == "cpu"
    return known and free and small and library() is not None and machine() is not None


@torch.no_grad()
def played_natively(
    scenario: StockTrading, programs: Sequence[Program], paths: Tensor, days: Tensor, state: StockState
) -> Played:
    """Play programs on paths from some days; ``state`` are the accounts of one program at the start, of M rows."""
    length, tape = scenario.config.episode_length, scenario.tape
    shape = count, num_paths = len(programs), len(paths)
    market = _prices(scenario, paths, days)
    money = {name: torch.zeros(shape, dtype=torch.float64) for name in _MONEY}
    for name, start in (("cash", state.cash), ("value", state.portfolio_value), ("start_value", state.start_value)):
        money[name][:] = start
    holdings = state.holdings.float().T.repeat(count, 1, 1).contiguous()
    read = _Read(scenario, programs, paths, days, state)
    rules = _Rules(
        num_paths,
        tape.num_symbols,
        scenario.config.action == "weights",
        length,
        *(float(scenario.params[name]) if scenario.params[name].ndim == 0 else 0.0 for name in _NUMBERS[:-1]),
        tape.tick_size,
    )
    value, traded = torch.empty(2, length + 1, *shape, dtype=torch.float64)
    value[0] = money["value"]
    pointers = {name: values.data_ptr() for name, values in money.items()}
    run, parts = library(), _parts(count)
    assert run is not None
    with ThreadPoolExecutor(len(parts)) as pool:
        for elapsed in range(length):
            outputs = read.outputs(elapsed)
            rules.bars_left = length - elapsed - 1
            day = _Day(*(market[name][elapsed].data_ptr() for name in _PRICES))
            accounts = _Accounts(**pointers | {"traded": traded[elapsed].data_ptr()}, holdings=holdings.data_ptr())
            given = [ctypes.byref(one) for one in (rules, day, accounts)]
            rest = ctypes.c_void_p(outputs.data_ptr()), read.pointers

            def stepped(part: tuple[int, int], given: list = given, rest: tuple = rest) -> None:
                run.vecenv_accounts_day(*map(ctypes.c_int64, part), *given, *rest)

            if len(parts) == 1:
                stepped(parts[0])
            else:
                list(pool.map(stepped, parts))
            value[elapsed + 1] = money["value"]
    last = state[torch.arange(num_paths).repeat(count)]
    worth, lived = value[-1].flatten(), money["days"].long()
    last = last.replace(portfolio_value=worth.to(state.portfolio_value.dtype), day=last.start_day + lived.flatten())
    return Played(value, traded[:length], money["refusals"].long(), lived, last, torch.full_like(worth, torch.nan))


def _parts(count: int) -> list[tuple[int, int]]:
    """Return first and last program of each thread."""
    threads = min(torch.get_num_threads(), count)
    ends = [count * part // threads for part in range(threads + 1)]
    return list(itertools.pairwise(ends))


def _prices(scenario: StockTrading, paths: Tensor, days: Tensor) -> dict[str, Tensor]:
    """Return what accounts read of the market, by the law's own functions. Shape of each: (L, K, M)."""
    money, params, shared = scenario.money, scenario.params, scenario.shared
    tape, config = scenario.tape, scenario.config
    rows = (paths * tape.num_days + days)[:, None] + torch.arange(config.episode_length + 1)
    close, late = shared["close"][rows], config.fill == "next_open"
    filled = rows[:, 1:] if late else rows[:, :-1]
    fill = shared["open"][filled] if late else close[:, :-1]
    prices = fill_prices(money, fill, params["slippage"], params["commission"])
    surcharge = 1.0 + params["commission"] + params["slippage"]
    found = {
        "fill": prices.fill,
        "buy": prices.buy,
        "sell": prices.sell,
        "next": close[:, 1:],
        "shown": tape.ohlcv[..., CLOSE].flatten(0, 1)[rows[:, 1:]],
        "tradable": shared["tradable"][filled],
    }
    wide = {"reserved": reserved_price(money, fill, surcharge).double()}
    moved = {name: values.float() for name, values in found.items()} | wide
    return {name: values.permute(1, 2, 0).contiguous() for name, values in moved.items()}


class _Read:
    """What programs read, one row of lanes (K, M) for each number, and what they say of it.

    What needs whole paths is computed ahead, once for all programs; the rest on its day.

    Attributes:
        pointers: to the rows of what is read of the account, by program and feature; null of what is not read.
    """

    def __init__(
        self, scenario: StockTrading, programs: Sequence[Program], paths: Tensor, days: Tensor, state: StockState
    ) -> None:
        tape, graph = scenario.tape, Graph(programs, own_accounts=True)
        nodes, leaves, accounts = graph.nodes, graph.leaves("feature"), graph.leaves("account")
        whole = {*leaves, *(number for number, node in enumerate(nodes) if node.operation in STRUCTURED)}
        outputs = [number for own in graph.outputs for number in own]
        cone = graph.cone(outputs, whole)
        read = sorted(whole.intersection({*outputs, *(one for number in cone for one in nodes[number].operands)}))
        first, last = max(0, int(days.min()) + 1 - graph.history()), int(days.max()) + scenario.config.episode_length
        market = market_features(tape, [*(nodes[number].name for number in leaves), "close"])
        parts = torch.broadcast_tensors(*(values[paths, first:last] for values in market.values()))
        # With the closes, which tell the shape where programs read nothing.
        self._ahead = Plan(graph, leaves, read, tape.device)(torch.stack(parts)[: len(leaves)])
        self._days, self._path, self._together = days - first, torch.arange(len(paths)), len(days.unique()) == 1
        self._shape = tape.num_symbols, len(paths)
        self._rows = torch.empty(len(read) + len(accounts), *self._shape)
        self._machine = Machine(graph, [*read, *accounts], graph.outputs)
        places = torch.zeros(len(programs), len(ACCOUNT), dtype=torch.int64)
        shown = account_features(state, market["close"][paths, days], tape.tick_size)
        for row, number in zip(self._rows[len(read) :], accounts, strict=True):
            node = nodes[number]
            row[:] = shown[node.name].T
            places[int(node.value), list(ACCOUNT).index(node.name)] = row.data_ptr()
        self._places = places
        self.pointers = ctypes.c_void_p(places.data_ptr())

    def outputs(self, elapsed: int) -> Tensor:
        """Return what the programs say on a day, of the accounts written into their rows. Shape: (P, K, M)."""
        if self._together:
            market = self._ahead[:, :, int(self._days[0]) + elapsed]
        else:
            market = self._ahead[:, self._path, self._days + elapsed]
        self._rows[: len(market)] = market.transpose(1, 2)
        return self._machine(self._rows.flatten(1)).view(-1, *self._shape)
