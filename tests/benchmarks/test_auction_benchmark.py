"""The benchmark of auctions measures what it says, and writes what it prints."""

from __future__ import annotations

import json

import pytest

from vecenv.benchmarks.throughput.auction import AuctionConfig, main


@pytest.mark.nightly
def test_figures_are_printed_and_written(tmp_path, capsys):
    result = main(AuctionConfig(num_auctions=(2,), agents=20, levels=16, repeats=2, output=tmp_path))
    (path,) = tmp_path.glob("auction-*.json")
    assert json.loads(path.read_text())["figures"] == result["figures"]
    (figure,) = result["figures"]
    assert figure["orders_per_second"] == pytest.approx(2 * 20 / (figure["microseconds"] / 1e6))
    assert "2 auctions of 20" in capsys.readouterr().out


def test_no_repeat_is_refused():
    with pytest.raises(ValueError, match="repeats must be at least 1, got 0"):
        main(AuctionConfig(repeats=0))
