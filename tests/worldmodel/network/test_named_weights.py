"""Shipped weights by name: which file each name stands for, and that a file's record says which it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from vecenv.worldmodel.network.checkpoint import load_network
from vecenv.worldmodel.network.named_weights import JUDGED, SHIPPED, is_named, model_file, weights_named


def test_every_file_says_by_its_label_which_weights_it_holds():
    for file in (JUDGED, SHIPPED):
        record = load_network(file).record
        assert record["label"] == file.stem
        assert all(len(source["sha256"]) == 16 for source in record["sources"].values())


def test_both_are_of_one_recipe_and_the_shipped_ones_know_more_days():
    judged, shipped = (load_network(file) for file in (JUDGED, SHIPPED))
    assert judged.network.settings == shipped.network.settings
    assert judged.record["embargo"] == shipped.record["embargo"]
    differing = {
        name
        for name, value in judged.record["settings"].items()
        if shipped.record["settings"].get(name) != value and name != "bf16"
    }
    assert not differing
    for name, source in judged.record["sources"].items():
        later = shipped.record["sources"][name]
        assert later["symbols"] == source["symbols"] and later["sha256"] != source["sha256"]
        assert source["validation_end"] < later["train_end"] < later["validation_end"]


def test_a_model_is_a_name_or_a_path():
    assert model_file("judged") == JUDGED and model_file("mine.safetensors") == Path("mine.safetensors")
    assert model_file(Path("folder/judged")) == Path("folder/judged")
    assert is_named(weights_named("shipped")) and not is_named(Path("judged.safetensors"))
    with pytest.raises(ValueError, match="unknown weights 'best'; there are shipped, judged"):
        weights_named("best")
