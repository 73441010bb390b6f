"""Runs that are refused, damaged or stopped by a full disk, each told in a sentence."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch

from tests.tasks.commands.small_runs import GROUPS, RUN_FILES, train_args
from vecenv.learn import run_files
from vecenv.system.write_lock import WriteLock
from vecenv.tasks.commands import cli
from vecenv.tasks.commands.run_folder import read_checkpoint


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--num-envs", "64"), "--num-envs belongs to --algorithm ppo"),
        (("--num-groups", "64", "--group-size", "1"), "group_size must be at least 2"),
        (("--grpo.minibatches", "3"), "64 episodes cannot be split into 3 equal minibatches"),
        (("--grpo.reward.grade", "0"), "there is nothing to learn"),
    ],
)
@pytest.mark.assembly
def test_groups_that_do_not_fit_are_refused_before_any_work(place, tmp_path, capsys, words, told):
    assert cli.main(train_args(place, "--folder", str(tmp_path / "run"), *GROUPS, *words)) == cli.BAD_INPUT
    captured = capsys.readouterr()
    assert told in captured.err and "Making the market" not in captured.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("bf16", [("--ppo.bf16",), ()])
@pytest.mark.assembly
def test_products_that_the_cpu_emulates_are_told_before_any_work(place, tmp_path, capsys, monkeypatch, bf16):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    words = ("--folder", str(tmp_path / "run"), "--seed", "-1", *bf16)
    assert cli.main(train_args(place, *words)) == cli.BAD_INPUT
    told = capsys.readouterr()
    assert ("--ppo.bf16: this CPU (AVX2) emulates bfloat16" in told.err) == bool(bf16)
    assert "Making the market" not in told.err and not (tmp_path / "run").exists()


def copy_of_the_run(place, tmp_path):
    """A run of two updates that a test may damage."""
    return Path(shutil.copytree(place / "run", tmp_path / "run"))


@pytest.mark.assembly
def test_what_is_damaged_in_a_run_is_refused_before_the_market_is_made(place, tmp_path, capsys):
    folder = copy_of_the_run(place, tmp_path)
    log, checkpoint = folder / "metrics.csv", folder / "checkpoint.pt"
    rows, whole = log.read_text(), checkpoint.read_bytes()
    log.write_text(rows.replace("\n2,", "\n2,x", 1))
    checkpoint_words = f"{checkpoint}: not a checkpoint, or a damaged one"
    for damage, words in (
        (None, f"{log}, line 3: 'x1024' is not a number"),
        (whole[:-900], checkpoint_words),
        (b"not a checkpoint", checkpoint_words),
    ):
        if damage is not None:
            checkpoint.write_bytes(damage)
        assert cli.main(["train", "--resume", str(folder)]) == cli.BAD_INPUT
        captured = capsys.readouterr()
        assert captured.err == f"vecenv train: error: {words}\n" and captured.out == ""
    assert {path.name for path in folder.iterdir()} == RUN_FILES


@pytest.mark.nightly
def test_a_run_whose_last_row_was_cut_off_goes_on_with_a_note(place, tmp_path, capsys):
    folder = copy_of_the_run(place, tmp_path)
    log = folder / "metrics.csv"
    log.write_bytes(log.read_bytes()[:-9])
    assert cli.main(["train", "--resume", str(folder), "--ppo.total-frames", "1536", "--episodes", "3"]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert notes == [f"warning: {log}, line 3: cut off in the middle of writing, and left out"]
    assert pd.read_csv(log)["update"].tolist() == [1, 3]


@pytest.mark.assembly
def test_a_checkpoint_with_other_tensors_is_told_in_a_sentence(place, tmp_path, capsys):
    folder = copy_of_the_run(place, tmp_path)
    state = read_checkpoint(folder)
    state["actor"][0] = state["actor"][0].double()
    torch.save(state, folder / "checkpoint.pt")
    assert cli.main(["train", "--resume", str(folder)]) == cli.BAD_INPUT
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"vecenv train: error: {folder / 'checkpoint.pt'}: its state.actor.0 is float64 of shape")


@pytest.mark.assembly
def test_a_second_command_into_a_folder_is_refused_at_once(place, tmp_path, capsys):
    folder = tmp_path / "busy"
    conversations = tmp_path / "conversations.jsonl"
    conversations.write_text("{}")
    market = ["--market", str(place / "market.parquet")]
    with WriteLock(folder), WriteLock.beside(tmp_path / "model.safetensors"), WriteLock.beside(tmp_path / "out.jsonl"):
        for words in (
            train_args(place, "--folder", str(folder)),
            ["train", "--resume", str(folder)],
            train_args(place, "--folder", str(folder), *GROUPS),
            ["evaluate", *market, "--agents", "hold", "--folder", str(folder)],
            ["sft", "--data", str(conversations), "--folder", str(folder)],
            ["collect", "--out", str(tmp_path / "out.jsonl")],
            ["worldmodel", "train", *market, "--out", str(tmp_path / "model.safetensors")],
            ["worldmodel", "generate", "--out", str(folder)],
            ["worldmodel", "validate", "--history", market[1], "--discriminator-seeds", "0", "--out", str(folder)],
        ):
            if "--resume" in words:
                shutil.copy(place / "run" / "settings.yaml", folder)
            assert cli.main(words) == cli.BAD_INPUT, words
            captured = capsys.readouterr()
            assert f" is already being written, by process {os.getpid()} on " in captured.err, words
            assert len(captured.err.splitlines()) == 1 and captured.out == ""
            (folder / "settings.yaml").unlink(missing_ok=True)
    assert not folder.exists()


@pytest.mark.nightly
def test_a_full_disk_ends_the_command_in_a_sentence(place, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "run"
    save = run_files.save_checkpoint

    def full(state, path):
        if state["update"] == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(state, path)

    monkeypatch.setattr(run_files, "save_checkpoint", full)
    words = ("--folder", str(folder), "--ppo.checkpoint-every", "1")
    assert cli.main(train_args(place, *words)) == cli.BAD_INPUT
    told = capsys.readouterr().err.splitlines()[-1]
    kept = f"the checkpoint of update 1, {folder / 'checkpoint.pt'}, is kept"
    assert told == f"vecenv train: error: {folder}: the disk is full; {kept}"
    monkeypatch.undo()
    assert cli.main(["train", "--resume", str(folder), "--episodes", "3"]) == 0
    assert {path.name for path in folder.iterdir()} == RUN_FILES


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["train", "--market", "nofile.csv"], ["nofile.csv"]),
        (["train", "--market", "market.parquet", "--symbols", "S0", "S9"], ["market.parquet", "S9", "S1"]),
        (["train", "--market", "short.parquet"], ["short.parquet", "warm-up of 29 days", "in a market of"]),
        (["train", "--preset", "finrl", "--market", "market.parquet"], ["market.parquet", "episode of 250 days"]),
        (["train", "--market", "market.parquet", "--env.features", "nothing"], ["unknown features", "nothing"]),
        (["train", "--market", "market.parquet", "--end", "2010-01-01"], ["2010-01-01", "2020-01-01"]),
        (["train", "--preset", "nothing"], ["'nothing'", "quick"]),
        (["train", "--market", "nofile.csv", "--ppo.by-reference", "--ppo.policy", "symbol"], ["--ppo.policy flat"]),
        (["train", "--preset", "unknown.yaml"], ["unknown.yaml", "env: unknown settings comission", "commission"]),
        (["train", "--preset", "wrong.yaml"], ["wrong.yaml", "num_envs", "'many'", "int"]),
        (["train", "--preset", "resuming.yaml"], ["resuming.yaml", "unknown settings resume"]),
        (["train", "--task", "nothing"], ["unknown task 'nothing'", "stock_trading"]),
        (["train", "--device", "abacus"], ["abacus"]),
        (["train", "--resume", "nowhere"], ["nowhere"]),
        (["train", "--folder", "run"], ["already holds a run", "--resume run"]),
        (["train", "--train-end", "2021-01-01", "--test-start", "2020-01-01"], ["train_end", "2021-01-01"]),
        (["train", "--env.commission", "2"], ["commission must be in [0, 1), got 2.0"]),
        (["train", "--env.commission", "much"], ["much", "--env.commission"]),
        (["train", "--env.comission", "0.1"], ["--env.comission", "--env.commission"]),
        (["train", "--json", "nowhere/result.json"], ["nowhere"]),
        (["evaluate", "--agents", "hold", "nobody"], ["nobody", "buy_and_hold"]),
        (["evaluate", "--checkpoint", "nowhere"], ["nowhere"]),
        (["evaluate", "--checkpoint", "market.parquet"], ["market.parquet", "not a checkpoint"]),
        (["evaluate", "--checkpoint", "run", "--symbols", "S0", "S1"], ["3 symbols", "2 are chosen"]),
        (["evaluate", "--checkpoint", "run", "--env.features", "macd"], ["rsi_30", "macd"]),
        (["evaluate", "--checkpoint", "run", "--env.action", "weights"], ["'shares'", "'weights'"]),
        (["data", "inspect", "nofile.csv"], ["nofile.csv"]),
        (["data", "convert", "market.parquet", "market.xls"], ["market.xls", ".parquet"]),
        (["nothing"], ["nothing", "train"]),
    ],
)
def test_bad_input_is_refused_before_any_work(place, monkeypatch, capsys, args, words):
    monkeypatch.chdir(place)
    (place / "unknown.yaml").write_text("env: {comission: 0.1}")
    (place / "wrong.yaml").write_text("num_envs: many")
    (place / "resuming.yaml").write_text("resume: run")
    before = sorted(place.rglob("*"))
    assert cli.main(args) == 2
    captured = capsys.readouterr()
    assert all(word in captured.err for word in words), captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert sorted(place.rglob("*")) == before
