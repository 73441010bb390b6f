"""Today's orders: what an agent orders at the last close of a file for an account that is given; nothing is sent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import vecenv
from vecenv.core.env import VecEnv
from vecenv.core.scenario import flat_view
from vecenv.kernels.weights import orders_to_weights
from vecenv.learn.ensemble import members_of
from vecenv.learn.evaluation import Agent, PolicyAgent
from vecenv.learn.settings.run import CHECKPOINT, RESULTS
from vecenv.market.tape import MarketTape
from vecenv.programs.evaluation import Evaluator
from vecenv.registry import task_named
from vecenv.system.files import WriteLock, replacing
from vecenv.tasks.backtest.account import checked_account, place_account
from vecenv.tasks.backtest.holdings import CASH, Holdings, read_holdings
from vecenv.tasks.backtest.opening import History, named, read_history, refuse
from vecenv.tasks.backtest.result import shared_by_value
from vecenv.tasks.backtest.settings import OrdersSettings
from vecenv.tasks.experiment.checkpoints import read_checkpoint
from vecenv.tasks.experiment.comparison import ENSEMBLE
from vecenv.tasks.experiment.progress import wide_console
from vecenv.tasks.experiment.run_files import checkpoint_path
from vecenv.tasks.stock_trading.decisions import REASONS, decisions, order_table, scenario_of
from vecenv.tasks.stock_trading.law import LARGEST_DEAD_ZONE, Decision
from vecenv.text.money import exact_money, sign_of

FAR = 5.0
"""Standard deviations from the mean of the training beyond which a feature is outside its range."""


@dataclass(frozen=True)
class Orders:
    """Orders at the last close of a file. Money is in currency, weights are shares of the account's value.

    Attributes:
        agent: name of what decides.
        orders: a row for each order that was wanted: ``date``, ``symbol``, ``action`` (the agent's number), ``held``
            (shares before), ``target_weight`` (the agent's own, before rounding; NaN of an action in shares),
            ``target_shares`` (which it comes to), ``wanted`` (none within the dead zone), ``ordered`` (after the
            rules), ``shares`` (that cash covers too: what may be sent, positive to buy), ``price`` (the last close),
            ``value``, ``commission`` and ``slippage`` (expected), ``reason``, why less or more than was wanted, of
            `vecenv.tasks.stock_trading.decisions.REASONS`, and in each row ``cash_action`` (the tilt of cash, NaN
            without one) and ``cash_target_weight``.
        after: of every symbol ``action``, ``target_weight`` and ``target_shares`` as above, and what would be held if
            all filled at the last close: ``symbol``, ``shares``, ``price``, ``value``, ``weight``. The last row, CASH,
            has the cash as ``shares`` at price 1.
        value: of the account at the last close, before orders.
        told: task, rules, market, and start of the account, JSON-able.
        notes: what is to be known of these orders, in sentences.
    """

    agent: str
    orders: pd.DataFrame
    after: pd.DataFrame
    value: float
    told: Mapping[str, Any]
    notes: tuple[str, ...]


def orders(
    checkpoint: str | Path,
    market: str | Path | None = None,
    holdings: str | Path | pd.DataFrame | None = None,
    **options: Any,  # noqa: ANN401
) -> Orders:
    """Return what an agent orders at the last close of a file for an account. Nothing is sent anywhere.

    Args:
        checkpoint: folder of a run or its checkpoint, name of a rule of the task, or file of a program.
        market: file of bars whose last day is today, by default that of the run.
        holdings: the account, a CSV file or a frame: ``symbol``, ``shares``, and if known ``average_price`` and
            ``currency``; a row CASH has the cash.
        **options: of ``vecenv orders`` by name, such as ``cash=1_000.0``; those of the rules as a mapping ``env``.

    Raises:
        ValueError: an option does not exist, or there is a doubt about the orders; see the page.
    """
    settings = OrdersSettings.given(checkpoint, {"market": market, **options})
    return _written(settings, Path(holdings) if isinstance(holdings, str) else holdings, Console(quiet=True))


def run(settings: OrdersSettings) -> dict[str, Any]:
    """Tell what an agent orders at the last close of a file for an account; nothing is sent anywhere."""
    console = wide_console()
    found = _written(settings, settings.holdings, console)
    for note in found.notes:
        console.print(note, soft_wrap=True, highlight=False)
    console.print(order_words(found))
    for line in basis_words(found):
        console.print(line, soft_wrap=True, highlight=False)
    for reason in dict.fromkeys(filter(None, found.orders["reason"])):
        console.print(f"{reason}: {REASONS[reason]}", soft_wrap=True, highlight=False)
    if settings.out is not None:
        console.print(f"Written to {settings.out}: orders.csv, after.csv, orders.json", soft_wrap=True)
    return _told(found)


def _written(settings: OrdersSettings, holdings: Path | pd.DataFrame | None, console: Console) -> Orders:
    refuse(settings)
    _refuse(settings)
    if holdings is None:
        raise ValueError("--holdings is needed: a CSV file with symbol, shares and a row CASH")
    account = read_holdings(holdings, settings.cash)
    with nullcontext() if settings.out is None else WriteLock(settings.out):
        found = _made(settings, account, console)
        if settings.out is not None:
            settings.out.mkdir(parents=True, exist_ok=True)
            for name in ("orders", "after"):
                with replacing(settings.out / f"{name}.csv") as partial:
                    getattr(found, name).to_csv(partial, index=False)
            with replacing(settings.out / "orders.json") as partial:
                partial.write_text(json.dumps(_told(found), indent=2, default=str, allow_nan=False) + "\n")
    return found


def _refuse(settings: OrdersSettings) -> None:
    """Reject what can be known to be wrong before a file is read."""
    if settings.checkpoint == task_named(settings.task).domain.hindsight:
        raise ValueError(f"{settings.checkpoint} reads later prices, which today has not")
    if settings.env.fill != "close":
        raise ValueError(
            "the rules fill orders at the next open, which is not known today: --env.fill close sizes them at the last "
            "close, from which the fill will differ"
        )
    if not settings.env.whole_shares:
        raise ValueError("the rules trade fractions, but orders are for whole shares: --env.whole-shares")
    if settings.source.start is not None and settings.start_value is None:
        raise ValueError("--start says when the account began, but not with what: give --start-value, or neither")


def _made(settings: OrdersSettings, holdings: Holdings, console: Console) -> Orders:
    history = read_history(settings, console)
    tape = history.tape
    check_last_day(tape, settings.today or date.today(), settings.max_age)
    notes = [verdict_words(settings.checkpoint)] if history.checkpoints else []
    notes += [*history.notes, *check_currency(history)]
    if history.program is not None and "bars_left" in Evaluator([history.program]).account_features:
        raise ValueError(f"{settings.checkpoint}: reads bars_left, but today has no last bar to count to")
    account = checked_account(holdings, settings.cash, settings.start_value, tape, history.config)
    env = history.env(account.rules(history.config, tape))
    name, agent = history.agent(env)
    place_account(env, account)
    if isinstance(agent, PolicyAgent):
        far, count, known = features_outside(env, agent)
        told = f"{len(far)} of {count} values of features are further than {FAR:g} standard deviations from their mean "
        told += f"in the training: {', '.join(far[:6])}{f' and {len(far) - 6} others' if len(far) > 6 else ''}"
        if far and not settings.accept_outside:
            raise ValueError(f"{settings.checkpoint}: {told}; --accept-outside gives orders nevertheless")
        notes += [f"{told}."] if far else []
        notes += [] if known else ["The range of the features in the training is unknown: it is not checked."]
    origin = {"checkpoint": settings.checkpoint, "vecenv_version": vecenv.__version__}
    return ordered(env, agent, name, tuple(filter(None, notes)), origin)


def check_last_day(tape: MarketTape, today: date, max_age: int) -> None:
    """Raise ValueError where the last day of a market is old or to come, or a symbol has no bar on it.

    Its age is told in weekdays, holidays counted, on markets with bars at weekends in days.
    """
    days = tape.dates.astype("datetime64[D]")
    last = days[-1]
    if last > np.datetime64(today):
        raise ValueError(f"{tape.source}: its last bar is of {last}, which is after today, {today}")
    after, upto = last + 1, np.datetime64(today) + 1
    unit = "weekdays" if np.is_busday(days).all() else "days"
    age = int(np.busday_count(after, upto) if unit == "weekdays" else (upto - after).astype(int))
    if age > max_age:
        raise ValueError(
            f"{tape.source}: its last bar is of {last}, {age} {unit} before {today}: bring the file up to "
            f"date, or give --max-age {age}"
        )
    lacking = [name for name, there in zip(tape.symbols, tape.tradable[0, -1].tolist(), strict=True) if not there]
    if lacking:
        raise ValueError(f"{tape.source}: {', '.join(lacking)} cannot be traded on {last}: no bar, or in its warm-up")


def check_currency(history: History) -> list[str]:
    """Return notes where a currency is unknown; ValueError where a policy was trained on prices in another one."""
    own = history.tape.currency
    for path in history.checkpoints.values():
        trained = read_checkpoint(path)["scenario"]["market"].get("currency")
        if None not in (own, trained) and own != trained:
            raise ValueError(f"{path}: the policy was trained on prices in {trained}, but those of today are in {own}")
    return [] if own is not None else ["The currency of the prices is unknown: --currency USD says it."]


def verdict_words(checkpoint: str) -> str:
    """Return the sentence of a run's verdict on its test, else on its validation, or that there is none."""
    place = Path(checkpoint)
    try:
        told = json.loads((checkpoint_path(place).parent / RESULTS).read_text())["verdicts"] if is_whole(place) else []
        told = [one for one in told if {"agent", "part", "episodes", "told"} <= one.keys()]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        told = []
    if not told:
        return f"{checkpoint} has no verdict: nothing tells whether it is better than a benchmark."
    # Several seeds play as their ensemble.
    first = min(told, key=lambda one: (one["agent"] != ENSEMBLE, one["part"] == "validation"))
    episodes = "" if first["episodes"] is None else f", {first['episodes']:,} episodes"
    return f"Verdict   {first['part'] or 'played'}{episodes}: {first['agent']} {first['told']}."


def is_whole(place: Path) -> bool:
    """Whether what plays is what the results of a run judge: its folder, or the policy that it kept."""
    return place.is_dir() or place.name == CHECKPOINT


@torch.no_grad()
def features_outside(env: VecEnv, agent: PolicyAgent) -> tuple[list[str], int, bool]:
    """Return which features of the market are `FAR` from what policies were trained on, of how many, and if all tell.

    A policy knows the mean and the deviation of its inputs in training, not their range. The account's own inputs are
    left out: an account is in cash on one day of an episode only.
    """
    scenario, seen = scenario_of(env), flat_view(env.observations())
    far, count, known = dict[str, float](), 0, True
    for policy in members_of(agent.policy):
        mean, deviation = policy.parameters[:2]
        values, names = seen[0], [column.name for column in scenario.columns()]
        if len(mean) != len(names):
            # Of a policy of symbols, whose inputs are those of each symbol.
            values, width = scenario.items(seen).features[0].flatten(), len(scenario.item_features)
            names = [f"{name} {symbol}" for symbol in scenario.tape.symbols for name in scenario.item_features]
            mean, deviation = (moment[:width].repeat(scenario.tape.num_symbols) for moment in (mean, deviation))
        # As they are before anything was seen.
        known &= bool((mean != 0).any() or (deviation != 1).any())
        distance = ((values - mean) / deviation).abs().tolist()
        market = [place for place, name in enumerate(names) if name.split(" ")[0] not in ("cash", "holdings", "weight")]
        far |= {names[place]: distance[place] for place in market if not distance[place] <= FAR}
        count = len(market)
    return [f"{name} ({distance:.1f})" for name, distance in far.items()], count, known


@torch.no_grad()
def ordered(
    env: VecEnv,
    agent: Agent,
    name: str = "agent",
    notes: tuple[str, ...] = (),
    origin: Mapping[str, Any] | None = None,
) -> Orders:
    """Return what an agent orders for the account that is an environment's only row, by the engine's own function."""
    scenario, tape = scenario_of(env), scenario_of(env).tape
    action, state = agent.act(env), env.state
    made = decisions(env, state, action, torch.zeros(1, dtype=torch.int64))
    tick, symbols, value = tape.tick_size, list(tape.symbols), float(state.portfolio_value) * tape.tick_size
    table = order_table(env, state, action, made).rename(columns={"filled": "shares"}).reset_index(drop=True)
    place = [symbols.index(symbol) for symbol in table["symbol"]]
    fill, buy, sell = (getattr(made.prices, side)[0].double().numpy() for side in ("fill", "buy", "sell"))
    shares = table["shares"].to_numpy()
    paid = np.where(shares > 0, buy[place], sell[place])
    owed, one = made.fills.commissions.double().numpy(), np.zeros(len(table), int)
    asked = targets(env, action, made)
    table.insert(4, "target_weight", asked["target_weight"].to_numpy()[place])
    table.insert(5, "target_shares", asked["target_shares"].to_numpy()[place].astype(np.int64))
    table.insert(10, "value", shares * table["price"])
    table.insert(11, "commission", shared_by_value(owed, one, np.abs(shares) * paid, True) * tick)
    table.insert(12, "slippage", np.abs(shares) * np.abs(paid - fill[place]) * tick)
    table["cash_action"], table["cash_target_weight"] = asked[["action", "target_weight"]].iloc[-1]
    held, cash = made.fills.holdings[0].double().numpy(), float(made.fills.cash) * tick
    after = pd.DataFrame({"symbol": symbols, "shares": held, "price": fill * tick, "value": held * fill * tick})
    after.loc[len(after)] = [CASH, cash, 1.0, cash]
    after["weight"] = after["value"] / after["value"].sum()
    after = after.join(asked)
    start = str(tape.dates[int(state.start_day)].astype("datetime64[D]"))
    began = {"start": start, "start_value": float(state.start_value) * tick, "cash": float(state.cash) * tick}
    told = {**scenario.metadata(), "account": began, **(origin or {})}
    return Orders(name, table, after, value, told, notes)


def targets(env: VecEnv, action: torch.Tensor, made: Decision) -> pd.DataFrame:
    """Return ``action``, ``target_weight`` and ``target_shares`` of every symbol, and of cash in the last row.

    Weights are the agent's own, NaN of an action in shares. Shares are those before the dead zone, NaN of cash.
    """
    scenario, state, symbols = scenario_of(env), env.state, made.wanted.shape[-1]
    if made.weights.shape[-1]:
        surcharge = 1.0 + scenario.params["commission"] + scenario.params["slippage"]
        # Of the whole value, as all symbols can trade; from nothing held, orders are the targets.
        shares = orders_to_weights(
            scenario.money, made.weights, state.portfolio_value, 0 * state.holdings, made.prices, surcharge, None
        )
        weights = made.weights[0].double()
        weights = torch.cat([weights, 1.0 - weights.sum(-1, keepdim=True)])
    else:
        shares, weights = state.holdings + made.wanted, torch.full((symbols + 1,), torch.nan)
    # Cash has an action of its own with tilts only.
    numbers, none = action[0].double(), torch.full((1,), torch.nan, dtype=torch.float64)
    columns = (torch.cat([numbers, none])[: symbols + 1], weights, torch.cat([shares[0].double(), none]))
    names = ("action", "target_weight", "target_shares")
    return pd.DataFrame({name: column.numpy() for name, column in zip(names, columns, strict=True)})


def order_words(found: Orders) -> Table:
    """Return the orders, and the positions that stay, as a table for a terminal."""
    sign, began = sign_of(found.told["market"]["currency"]), found.told["account"]
    last, costs = found.told["market"]["last_day"][:10], found.orders[["commission", "slippage"]].sum(axis=1)
    start = f", begun with {exact_money(sign, began['start_value'])} on {began['start']}"
    start = "" if began["start"] == last else start
    title = f"{found.agent}: orders at the close of {last} for {exact_money(sign, found.value)}{start}; expected costs "
    table = Table(title=title + exact_money(sign, costs.sum()), box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title_style="")
    heads = ["symbol", "order", "close", "value", "costs", "held", "target", "target shares", "after", "weight"]
    for head in [*heads, *(["reason"] if found.orders["reason"].any() else [])]:
        table.add_column(head, justify="left" if head in ("symbol", "reason") else "right", no_wrap=True)
    sent = {order.symbol: (order, cost) for order, cost in zip(found.orders.itertuples(), costs, strict=True)}
    for row in found.after.iloc[:-1].itertuples():
        if not (row.shares or row.target_shares or row.symbol in sent):
            continue
        amounts, reason = ["", exact_money("", row.price), "", "", f"{row.shares:,.0f}"], ""
        if row.symbol in sent:
            order, cost = sent[row.symbol]
            amounts = [f"{order.shares:+,}", amounts[1], exact_money("", order.value), exact_money("", cost)]
            amounts, reason = [*amounts, f"{order.held:,}"], order.reason
        amounts += [_percent(row.target_weight, 3), f"{row.target_shares:,.0f}"]
        amounts += [f"{row.shares:,.0f}", _percent(row.weight)]
        table.add_row(row.symbol, *amounts, *[reason][: len(table.columns) - len(heads)])
    cash = found.after.iloc[-1]
    amounts = [exact_money(sign, amount) for amount in (began["cash"], cash["value"])]
    asked, weight = _percent(cash["target_weight"], 3), _percent(cash["weight"])
    table.add_row(CASH, "", "", "", "", amounts[0], asked, "", amounts[1], weight)
    return table


def basis_words(found: Orders) -> list[str]:
    """Return how shares follow from what the agent asks, and on what the orders rest, in a line each."""
    rules, market = found.told["config"], found.told["market"]
    zone = rules["dead_zone"]
    if rules["action"] == "shares":
        how = f"Orders are action × {rules['hmax']:g} shares, toward zero"
        how += f"; none where |action| ≤ {zone:g}, the dead zone." if zone else "; there is no dead zone."
    else:
        zone = min(zone, LARGEST_DEAD_ZONE / len(market["symbols"])) if rules["action"] == "tilt" else zone
        how = (
            "Target shares = ⌊⌊target × value⌋ ÷ ⌈close × (1 + commission + slippage)⌉⌋, inner brackets in ticks of "
            f"{market['tick_size']:g}. Orders are target less held shares"
        )
        table, money = found.after.iloc[:-1], exact_money(sign_of(market["currency"]), zone * found.value)
        silent = ~table["symbol"].isin(found.orders["symbol"]) & (table["shares"] != table["target_shares"])
        left = named(table["symbol"][silent].tolist()) or "none"
        size = f"{100 * zone:g}% of the value, {money}"
        told = f"; where |order| × close is at most the dead zone, {size}, they are left out: {left}."
        how += told if zone else "; there is no dead zone."
    rates = " and ".join(f"{name} {_rate(rules[name])}" for name in ("commission", "slippage"))
    return [
        how,
        f"Sized at the close of {market['last_day'][:10]}, where the rules fill them; to be placed before the next "
        f"close. Costs are those of the rules: {rates}.",
    ]


def _percent(share: float, decimals: int = 1) -> str:
    return "" if np.isnan(share) else f"{100 * share:.{decimals}f}%"


def _rate(rate: float | Sequence[float]) -> str:
    """Return a rate, or the range of those of symbols, in per cent."""
    if isinstance(rate, Sequence):
        return f"{100 * min(rate):g} to {100 * max(rate):g}% by symbol"
    return f"{100 * rate:g}%"


def _told(found: Orders) -> dict[str, Any]:
    """Return orders, JSON-able."""
    whole = {name: getattr(found, name).astype(object) for name in ("orders", "after")}
    tables = {name: table.where(table.notna(), None).to_dict("records") for name, table in whole.items()}
    dated = [{**row, "date": str(row["date"].date())} for row in tables["orders"]]
    kept = {"agent": found.agent, "value": found.value, "orders": dated, "after": tables["after"]}
    return {**kept, "notes": list(found.notes), **found.told}
