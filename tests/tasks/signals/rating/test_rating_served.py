"""Rating news through OpenEnv: a client of the served task plays an episode, and rubbish is an invalid answer."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest

pytest.importorskip("openenv", reason="the door to OpenEnv needs vecenv[openenv]")

from vecenv.adapters.openenv import MarketAction, MarketClient

DAYS = 3


@pytest.mark.nightly
def test_an_episode_through_the_typed_client():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    served = subprocess.Popen(
        [
            *(
                sys.executable,
                "-m",
                "vecenv.tasks.commands.cli",
                "serve",
                "--task",
                "news_signals",
                "--port",
                str(port),
            ),
            *("--symbols", "A", "B", "--num-paths", "4", "--num-days", "80", "--env.episode-length", str(DAYS)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert served.stdout is not None
    try:
        assert any(line.startswith("Serving ") for line in served.stdout)
        with MarketClient(base_url=f"http://127.0.0.1:{port}").sync() as client:
            result = client.reset(split="train", index=0)
            assert "A |" in result.observation.text and "-10 to 10" in result.observation.instructions
            valid = []
            for answer in ("nothing that can be read", "A: +4\nB: -3", "B: 10"):
                assert not result.done
                result = client.step(MarketAction(text=answer))
                valid.append(result.observation.valid)
            assert result.done and valid == [False, True, True]
            assert {"rank_ic", "total_return"} <= set(result.observation.outcomes)
            assert 0 <= result.reward <= 1
    finally:
        served.send_signal(signal.SIGINT)
        served.communicate(timeout=60)
