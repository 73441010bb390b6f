"""The benchmark of the server: what it measures, and what it refuses."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("openenv", reason="the server needs vecenv[openenv]")

from vecenv.benchmarks.serving.served_sessions import ServedSessionsConfig, main, running_server


@pytest.mark.nightly
def test_both_servers_are_measured(tmp_path):
    config = ServedSessionsConfig(sessions=(1, 3), seconds=0.5, repeats=1, compile=False, out=tmp_path)
    result = main(config)
    assert [(figure["server"], figure["sessions"]) for figure in result["figures"]] == [
        ("vecenv", 1),
        ("vecenv", 3),
        ("trivial", 1),
        ("trivial", 3),
    ]
    for figure in result["figures"]:
        assert 0 < figure["median_milliseconds"] <= figure["p99_milliseconds"] < 5000
        # As many sessions cannot have got more answers than their waiting allows.
        assert figure["steps_per_second"] * figure["median_milliseconds"] / 1000 < 3 * figure["sessions"]
    (written,) = tmp_path.glob("*.json")
    assert json.loads(written.read_text()) == json.loads(json.dumps(result))


def test_a_server_that_does_not_start_is_told():
    with pytest.raises(RuntimeError, match="did not start"), running_server(["-c", "print('no')"]):
        pass


@pytest.mark.parametrize("wrong", [{"sessions": ()}, {"sessions": (0,)}, {"seconds": 0.0}, {"repeats": 0}])
def test_settings_must_be_positive(wrong):
    with pytest.raises(ValueError, match="must be positive"):
        ServedSessionsConfig(**wrong)
