"""What ranks send each other is what is counted of the shards of one process, and what the page tells of it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vecenv.benchmarks.throughput.exchange import Counting, default_exchange, exchange_of, table
from vecenv.learn.shards import as_rank, ranks
from vecenv.testing import learner_case
from vecenv.testing.ranks import on_ranks

SHARDS, ROWS = 4, 8


def made():
    case, rows = learner_case("ppo"), ROWS // ranks().count
    env = case.rows_of_rank(torch.arange(rows) + ranks().number * rows)
    return case.make(env, replace(case.config, shards=SHARDS, total_frames=1000))


def test_ranks_receive_what_is_counted_of_the_shards_of_one_process():
    counting = Counting()
    with as_rank(counting):
        learner = made()
        exchange = exchange_of(learner, counting)
        assert exchange.gradients == 4 * sum(parameter.numel() for parameter in learner.parameters)
        counting.played, counting.given = 0, []
        learner = made()
        for _ in range(3):
            learner.update()
    given = sum(counting.given) + counting.played

    def received(rank):
        learner = made()
        for _ in range(3):
            learner.update()
        return learner.shards.ranks.received

    for count in (2, 4):
        # Each gives all others what its shards give; of episodes that ended some ranks give more.
        assert sum(on_ranks(count, received)) == (count - 1) * given


@pytest.mark.assembly
def test_the_page_tells_what_is_counted():
    assert table(default_exchange()) in Path("benchmarks/results/processes.md").read_text()
