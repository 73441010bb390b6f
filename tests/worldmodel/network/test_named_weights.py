"""Shipped weights by name: which file each name stands for, and that a file's record says which it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from vecenv.worldmodel.network import named_weights
from vecenv.worldmodel.network.checkpoint import load_network
from vecenv.worldmodel.network.named_weights import JUDGED, SHIPPED, is_named, model_file, weights_named


def test_every_file_says_by_its_label_which_weights_it_holds():
    for file in (JUDGED, SHIPPED):
        if file.exists():
            record = load_network(file).record
            assert record["label"] == file.stem
            assert all(len(source["sha256"]) == 16 for source in record["sources"].values())
    assert JUDGED.exists()


def test_the_judged_weights_are_the_default_until_there_are_others(tmp_path, monkeypatch):
    monkeypatch.setattr(named_weights, "SHIPPED", tmp_path / "shipped.safetensors")
    assert weights_named("shipped") == weights_named("judged") == JUDGED
    (tmp_path / "shipped.safetensors").touch()
    assert weights_named("shipped") == tmp_path / "shipped.safetensors" and weights_named("judged") == JUDGED


def test_a_model_is_a_name_or_a_path():
    assert model_file("judged") == JUDGED and model_file("mine.safetensors") == Path("mine.safetensors")
    assert model_file(Path("folder/judged")) == Path("folder/judged")
    assert is_named(weights_named("shipped")) and not is_named(Path("judged.safetensors"))
    with pytest.raises(ValueError, match="unknown weights 'best'; there are shipped, judged"):
        weights_named("best")
