"""The curve over numbers of processes: what is started, what of the time is waiting; and a small one, whole."""

import pytest

from vecenv.benchmarks.throughput.command import BenchConfig, main
from vecenv.benchmarks.throughput.processes import Size, Start, curve, shares_of, starts_of


def test_every_number_is_started_and_one_shard_beside_all_in_one_process():
    assert starts_of([2, 1, 2], 8) == [Start(1, 1), Start(1, 8), Start(2, 8)]
    assert starts_of([2, 4], 8) == [Start(2, 8), Start(4, 8)]
    assert [start.name() for start in starts_of([1], 4)] == ["1 process, 1 shard", "1 process, 4 shards"]


def test_waiting_is_until_the_slowest_comes_and_exchange_is_what_follows():
    # The second rank comes 3 s later, then the first 1 s; each exchange takes 1 s, the last 2 s of the second.
    first, second = [(0.0, 4.0), (6.0, 7.0)], [(3.0, 4.0), (5.0, 8.0)]
    exchange, waiting = shares_of([first, second], 10.0)
    assert exchange == pytest.approx((1 + 1 + 1 + 2) / 2 / 10) and waiting == pytest.approx((3 + 1) / 2 / 10)


def test_shards_that_do_not_split_are_refused_before_anything_is_started():
    with pytest.raises(ValueError, match="8 shards cannot be shared evenly by 3 processes: take 2 or 4 processes"):
        main(BenchConfig(processes=(1, 3), output=None))


@pytest.mark.nightly
def test_a_small_curve_tells_every_start(capsys):
    size = Size("stock_trading", 16, 8, 4, compile=False, market="synthetic", num_days=400)
    figures = curve(size, [1, 2], 1)
    assert [figure["name"] for figure in figures] == [start.name() for start in starts_of([1, 2], 4)]
    assert len(capsys.readouterr().out.splitlines()) == 3
    for figure in figures:
        assert figure["sampling"] > 0 and figure["training"] > 0 and figure["start_seconds"] > 0
        assert 0 <= figure["exchange"] + figure["waiting"] <= 1
    assert figures[1]["received_bytes"] == 0 < figures[2]["received_bytes"]
    assert figures[1]["training_ratio"] == 1
