"""Sweeps with Optuna: what they come to whatever is killed, and how they fail."""

import json
import multiprocessing
import os
import signal
import sys
import time
from random import Random

import pytest

pytest.importorskip("optuna")

from tests.tasks.sweep.walks import ended, result, started, wait_until, words, workers, write_files
from tests.tasks.sweep.walks import members as alive
from vecenv import registry
from vecenv.tasks.commands import cli

pytestmark = pytest.mark.assembly
TRIALS = 7
FAILING = """
import multiprocessing

if multiprocessing.parent_process():
    from vecenv.tasks.experiment.experiment import Experiment

    def fit(self, watch=None):
        raise (FloatingPointError if self.folder.name == "trial_000" else RuntimeError)("planted")

    Experiment.fit = fit
"""


def told_of(folder):
    return json.loads((folder / "sweep.json").read_text())


def test_a_sweep_whose_processes_are_killed_comes_to_what_one_process_comes_to(tmp_path):
    write_files(tmp_path)
    whole, killed, draw = tmp_path / "whole", tmp_path / "killed", Random(3)
    process = started(tmp_path, words("whole", TRIALS, 1))
    said, _ = process.communicate()
    assert process.returncode == 0, said
    for what, code in (("worker", cli.BAD_INPUT), ("parent", -signal.SIGKILL), ("Ctrl+C", cli.INTERRUPTED)):
        process, before = started(tmp_path, words("killed", TRIALS, 2)), ended(killed)
        wait_until(lambda since=before: ended(killed) > since)
        time.sleep(draw.uniform(0, 0.5))
        if what == "Ctrl+C":
            os.killpg(process.pid, signal.SIGINT)
        else:
            os.kill(draw.choice(workers(process.pid)) if what == "worker" else process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        assert process.returncode == code, said
        assert what != "worker" or (
            "error: trial " in said and "SIGKILL" in said and "the same command goes on" in said
        )
        wait_until(lambda session=process.pid: not alive(session), 30.0)
        assert not (killed / "sweep.json").exists()
    process = started(tmp_path, words("killed", TRIALS, 2))
    said, _ = process.communicate()
    assert process.returncode == 0, said
    # Python's tracker of resources ends by itself, a moment after its parent.
    wait_until(lambda: not alive(process.pid), 30.0)
    assert result(killed) == result(whole)

    told = told_of(killed)
    trials, counts = told["trials"], told["looked_at"]
    assert [trial["trial"] for trial in trials] == list(range(TRIALS))
    assert sum(one["interrupted"] for one in trials) >= 3
    assert counts["pruned"] >= 1 and counts["complete"] + counts["pruned"] == counts["trials"] == TRIALS
    rewards = {one["trial"]: one["validation"]["mean"] for one in trials if one["state"] == "complete"}
    winner = told["winner"]["trial"]
    assert rewards[winner] == max(rewards.values())
    # The test was played by the winner alone, beside the policy before its training.
    assert [path.parent.name for path in killed.glob("*/metrics.json")] == [f"trial_{winner:03d}"]
    agents = told["winner"]["test"]["evaluation"]["agents"]
    assert set(agents) == {"trained", "untrained", "stand", "homewards"}
    assert agents["trained"]["reward"]["mean"] > agents["untrained"]["reward"]["mean"]
    figures = told["winner"]["deflated"]["reward"]
    assert figures["value"] == rewards[winner] and figures["deflated"] < figures["value"]
    assert (killed / "sweep.png").stat().st_size > 10_000


def test_failures_have_the_number_of_their_trial_and_other_settings_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, FAILING, seeds=2)
    assert cli.main(words("sweep", 2, 1)) == cli.BAD_INPUT
    assert "error: trial 1: RuntimeError: planted; sweep/trial_001/log.txt has more" in capsys.readouterr().err
    assert "planted" in (tmp_path / "sweep" / "trial_001" / "log.txt").read_text()
    write_files(tmp_path, seeds=2)
    assert cli.main(words("sweep", 2, 1)) == 0
    assert "trials were looked at" in capsys.readouterr().out
    failed, complete = told_of(tmp_path / "sweep")["trials"]
    assert (failed["state"], failed["reason"], failed["seeds"]) == ("failed", "planted", [])
    assert complete["state"] == "complete" and len(complete["seeds"]) == 2 and complete["interrupted"] == 1
    assert complete["validation"]["mean"] == pytest.approx(sum(seed["reward"] for seed in complete["seeds"]) / 2)
    for more, told in ((("--seed", "1"), "sweep is a sweep with other sweep.seed (0, not 1)"), ((), "no sweep")):
        if not more:
            (tmp_path / "sweep" / "journal.log").unlink()
        assert cli.main([*words("sweep", 2, 1), *more]) == cli.BAD_INPUT
        assert told in capsys.readouterr().err
    assert not multiprocessing.active_children()
    sys.modules.pop("walk_task", None)
