"""The run folder: numbers and pictures."""

from __future__ import annotations

import json

import matplotlib.image
import pytest

import vecenv
from tests.learn.test_learning_curve import HISTORY
from vecenv.learn.evaluation import evaluate
from vecenv.learn.report import equity_figure, exposure_figure, holdings_figure, write_run_folder
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape
from vecenv.tasks.stock_trading.agents import BASELINES


@pytest.fixture(scope="module")
def evaluation():
    tape = MarketTape.from_bars(synthetic_bars(num_paths=3, num_days=100, symbols=12, seed=1), ("rsi_14",))
    env = vecenv.make("stock_trading", 12, market=tape, compile=False, episode_length=30, initial_cash=1e5)
    return evaluate(env, {name: agent() for name, agent in BASELINES.items()}, seed=4)


def test_run_folder(evaluation, tmp_path):
    folder = tmp_path / "new" / "run"
    written = write_run_folder(folder, {"seed": 7, "settings": {"hidden": [64, 64]}}, evaluation, [HISTORY], "oracle")
    read = json.loads((folder / "metrics.json").read_text())
    assert read["vecenv_version"] == vecenv.__version__
    assert read["seed"] == 7
    assert read["evaluation"]["task_version"] == evaluation.metadata["task_version"]
    assert read["evaluation"]["market"]["fingerprint"] == evaluation.metadata["market"]["fingerprint"]
    assert read["evaluation"]["agents"]["oracle"]["sharpe"] == written["evaluation"]["agents"]["oracle"]["sharpe"]
    assert read["worst_days"] == written["worst_days"]
    assert len(read["worst_days"]) == 10
    for name in ("learning_curve", "equity", "drawdown", "exposure", "holdings", "worst_days"):
        picture = matplotlib.image.imread(folder / f"{name}.png")
        assert picture.shape[1] > 1000
        assert len({tuple(pixel) for pixel in picture[::7, ::7].reshape(-1, picture.shape[-1]).tolist()}) > 3, name


def test_no_learning_curve_without_training(evaluation, tmp_path):
    write_run_folder(tmp_path, {}, evaluation)
    assert not (tmp_path / "learning_curve.png").exists()
    assert (tmp_path / "equity.png").exists()


def test_unknown_agent(evaluation, tmp_path):
    with pytest.raises(ValueError, match=r"no agent 'ppo' in the evaluation; it has hold, random"):
        write_run_folder(tmp_path, {}, evaluation, agent="ppo")


def test_equity_picture_shows_the_medians(evaluation):
    figure = equity_figure(evaluation)
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[0].get_lines()}
    for name, record in evaluation.records.items():
        start, end = record.curves.equity[0], record.curves.equity[-1]
        assert lines[name][0] == pytest.approx(100.0)
        assert lines[name][-1] == pytest.approx(100 * float((end / start).quantile(0.5)), rel=1e-9)
    title = figure.get_suptitle()
    for word in (
        "stock_trading",
        "synthetic market",
        "12 symbols",
        "12 episodes",
        str(evaluation.market.dates[40])[:2],
    ):
        assert word in title


def test_exposure_picture_shows_the_invested_share(evaluation):
    figure = exposure_figure(evaluation)
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[0].get_lines()}
    assert set(lines["hold"]) == {0.0} and "oracle" not in lines
    record = evaluation.records["buy_and_hold"]
    shares = 100 * (1 - record.curves.cash / record.curves.equity)
    assert lines["buy_and_hold"].tolist() == pytest.approx(shares.quantile(0.5, dim=1).tolist())


def test_holdings_stack_up_to_the_account(evaluation):
    figure = holdings_figure(evaluation, "buy_and_hold")
    total = figure.axes[0].get_lines()[0].get_ydata()
    equity = evaluation.records["buy_and_hold"].curves.equity[:, 0] / 1e3
    assert total.tolist() == pytest.approx(equity.tolist(), rel=1e-6)
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels[-1] == "cash"
    assert labels[0] == "4 others"


def test_no_others_are_named_where_every_position_is_shown(evaluation, monkeypatch):
    monkeypatch.setattr("vecenv.learn.report._LARGEST_POSITIONS", 12)
    figure = holdings_figure(evaluation, "buy_and_hold")
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert len(labels) == 13 and not any("others" in label for label in labels)
