"""Programs play stock trading as hand-written rules do, alone or many together; the command shows them."""

import json

import pytest
import torch

import vecenv
from vecenv.market.bars import CLOSE
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape
from vecenv.programs.parsing import parsed
from vecenv.tasks.commands.cli import main
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.tasks.stock_trading.programs import PROGRAMS

RULE = "above = close > mean(close, bars=3)\nweight = 0.1 if above and gain > -0.01 else held / 2\n"


def read(text, **config):
    return parsed(text, PROGRAMS.vocabulary(StockTradingConfig(**config)))


TAPE = MarketTape.from_bars(synthetic_bars(4, 90, ("A", "B", "C"), seed=3))
DAYS = 6


def env_of(num_envs, action="weights", **options):
    rules = {"action": action, "episode_length": DAYS}
    return vecenv.make("stock_trading", num_envs, market=TAPE, seed=3, compile=False, **rules, **options)


class ByHand:
    """The rule of the program above."""

    def act(self, env):
        state, tape = env.state, env.scenario.tape
        close = [tape.ohlcv[..., CLOSE][state.path, state.day - ago] for ago in (2, 1, 0)]
        mean = (sum(day.double() for day in close) / 3).float()
        gain = (state.portfolio_value.double() / state.start_value.double() - 1).float().unsqueeze(-1)
        value = (state.portfolio_value.double() * tape.tick_size).unsqueeze(-1)
        worth = state.holdings.double() * close[-1].double() / value
        return torch.where((close[-1] > mean) & (gain > -0.01), 0.1, worth.float() / 2)


def played(env, agent):
    env.reset()
    actions = []
    for _ in range(DAYS):
        actions.append(agent.act(env))
        env.step(env.rand_action().set("action", actions[-1]))
    return torch.stack(actions), env.state.portfolio_value.clone()


def test_a_program_plays_as_the_same_rule_by_hand():
    (ours, value), (theirs, other) = (
        played(env_of(32), agent) for agent in (PROGRAMS.agent([read(RULE, action="weights")]), ByHand())
    )
    assert torch.equal(ours, theirs) and torch.equal(value, other) and 0 < int((ours == 0.1).sum()) < ours.numel()


def test_programs_together_play_as_each_alone():
    texts = [RULE, "weight = 0.02 + 0 * held", RULE.replace("-0.01", "0")]
    programs = [read(text, action="weights") for text in texts]
    actions, values = played(env_of(24, env_ids=torch.arange(8).repeat(3)), PROGRAMS.agent(programs))
    for number, program in enumerate(programs):
        alone, value = played(env_of(8, env_ids=torch.arange(8)), PROGRAMS.agent([program]))
        rows = slice(8 * number, 8 * number + 8)
        assert torch.equal(actions[:, rows], alone) and torch.equal(values[rows], value)


def test_tilts_and_orders():
    env = env_of(4, "tilt")
    env.reset()
    action = PROGRAMS.agent([read("tilt = rsi_30 / 100", action="tilt")]).act(env)
    assert action.shape == (4, env.scenario.tape.num_symbols + 1) and not action[:, -1].any() and action.any()
    env = env_of(4, "shares")
    env.reset()
    action = PROGRAMS.agent([read("order = 50 - holdings", action="shares")]).act(env)
    assert action.unique().tolist() == [0.5]


def test_programs_read_their_account():
    names = ("cash", "value", "holdings", "held", "cash_share", "gain", "bars_left")
    agent = PROGRAMS.agent([read(f"weight = plain({name})", action="weights") for name in names])
    env = env_of(len(names), env_ids=torch.zeros(len(names), dtype=torch.int64))
    env.reset()
    for _ in range(3):
        env.step(env.rand_action().set("action", torch.tensor([[0.1, 0.3, 0.2]]).repeat(len(names), 1)))
    state = env.state
    read_off = agent.act(env)[:, 1].tolist()
    shares, close = int(state.holdings[0, 1]), float(TAPE.ohlcv[state.path[0], state.day[0], 1, CLOSE])
    cash, value, start = (int(kept[0]) for kept in (state.cash, state.portfolio_value, state.start_value))
    left = int(state.end_day[0] - state.day[0])
    tick = TAPE.tick_size
    wanted = (cash * tick, value * tick, shares, shares * close / (value * tick), cash / value, value / start - 1, left)
    assert shares and left == DAYS - 3 and read_off == pytest.approx(wanted, rel=1e-6)


def test_what_does_not_fit_is_refused():
    env = env_of(4)
    env.reset()
    with pytest.raises(ValueError, match="the programs were read for other rules than the environment's"):
        PROGRAMS.agent([read("tilt = 0", action="tilt")]).act(env)
    with pytest.raises(ValueError, match="4 rows are not a multiple of 3 programs"):
        PROGRAMS.agent([read(RULE, action="weights")] * 3).act(env)
    with pytest.raises(ValueError, match="programs that play together must play the same episodes"):
        PROGRAMS.agent([read(RULE, action="weights")] * 2).act(env)


def test_the_command(tmp_path, capsys):
    file = tmp_path / "rule.txt"
    file.write_text("# A rule.\nidle = 1\n" + RULE)
    assert main(["program", "check", str(file)]) == 0
    shown = capsys.readouterr().out
    assert RULE in shown and "# 3 lines, 6 operations, first action after 3 bars" in shown
    assert "# without effect: idle" in shown
    assert main(["program", "explain", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "true or false" in shown and "ahead: 1 mean, 1 lt" in shown and "4 levels; 3 bars" in shown
    assert main(["program", "export", str(file), "--out", str(tmp_path / "rule.py")]) == 0
    assert 'features["close"]' in (tmp_path / "rule.py").read_text()
    file.write_text("a = 0; order = holdings * plain(max(close,\nbars=3))")
    assert main(["program", "check", str(file)]) == 0


@pytest.mark.assembly
def test_the_command_plays(tmp_path, capsys):
    file, result = tmp_path / "rule.txt", tmp_path / "run.json"
    file.write_text(RULE)
    assert main(["program", "run", str(file), "--episodes", "4", "--json", str(result)]) == 0
    shown = capsys.readouterr().out
    assert "Market    synthetic" in shown and "Played    20" in shown and "buy_and_hold" in shown
    assert "rule" in json.loads(result.read_text())["agents"]


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        (b"weight = clse", (), "rule.txt: line 1, column 10: unknown name clse (did you mean close?)"),
        (b"a = 1", (), "line 1, column 1: a program ends with weight = ..."),
        (b"\xff", (), "rule.txt: this is not UTF-8"),
        (b"#" * 40_000, (), "rule.txt: a program has at most 8,192 characters"),
        (b"weight = 1", ("--task", "curriculum"), "task 'curriculum' is not played by programs"),
    ],
)
def test_the_command_refuses_in_a_sentence(text, options, sentence, tmp_path, capsys):
    file = tmp_path / "rule.txt"
    file.write_bytes(text)
    assert main(["program", "check", str(file), *options]) == 2
    assert sentence in capsys.readouterr().err
