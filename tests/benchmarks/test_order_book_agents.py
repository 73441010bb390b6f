"""Agents on order books, of one book for the training and of another."""

from __future__ import annotations

import pytest

from tests.book_files import write_books
from vecenv.benchmarks.learning import order_book_agents
from vecenv.benchmarks.learning.order_book_agents import DQN_VOTE, HOME, MEMBERS, PPO_VOTE, OrderBookAgentsConfig, main


@pytest.mark.nightly
def test_agents_play_what_they_were_not_trained_on(tmp_path, monkeypatch):
    """All agents and votes are in the table of either book; the oracle is the best; costs grow with the fee."""
    write_books(tmp_path / "books.parquet")
    home = {"book": "books.parquet", "train_hours": 0.5, "test_hours": 0.2}
    monkeypatch.setattr(order_book_agents, "TRAINED_ON", home)
    monkeypatch.setattr(order_book_agents, "BOOKS", {"other": {"book": "books.parquet"}})
    small = {"seeds": 2, "ppo_frames": 1, "dqn_frames": 1, "episode_steps": 60, "other_steps": 120, "compile": False}
    result = main(OrderBookAgentsConfig(data=tmp_path, fees=(0.0, 5.0), output=tmp_path, **small))
    assert list(result["books"]) == [HOME, "other"] and result["config"]["data"] == tmp_path.name
    for name, windows in ((HOME, 11), ("other", 29)):
        fees = result["books"][name]["fees"]
        assert list(fees) == ["0", "5"]
        for told in fees.values():
            agents = told["agents"]
            assert {"trained_0", "trained_1", PPO_VOTE, *MEMBERS, DQN_VOTE, "untrained", "hold", "oracle"} < set(agents)
            returns = {agent: entry["total_return"]["mean"] for agent, entry in agents.items()}
            assert returns["oracle"] == max(returns.values()) > returns["hold"] == 0
            assert told["windows"] == windows and 0 <= told["disagreement"] <= 1
        assert (
            fees["5"]["agents"]["random"]["total_return"]["mean"]
            < fees["0"]["agents"]["random"]["total_return"]["mean"]
        )
    page = (tmp_path / "order-book-agents.md").read_text()
    assert page.count("## Taker fee") == 2 and page.count(f"| {HOME} |") == 2
