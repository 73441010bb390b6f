"""The tiny model and its tokenizer: every text survives, and folders give back what was written."""

from __future__ import annotations

import errno
import resource

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError

from tests.language.tiny import SMALL, small_model, words
from vecenv.language.models import chat_format, frozen_copy, load_model, longest_context, save_model, with_adapters
from vecenv.language.tiny_config import TinyConfig
from vecenv.language.tiny_model import tiny_model

MODEL, TOKENIZER = small_model()


@given(st.text(max_size=60))
def test_any_text_survives(text):
    tokens = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    assert TOKENIZER.decode(tokens, skip_special_tokens=False) == text
    assert all(0 <= token < len(TOKENIZER) for token in tokens)


def test_the_texts_of_the_task_are_short_and_digits_are_alone():
    text = words()[0]
    tokens = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    pieces = [TOKENIZER.decode([token]) for token in tokens]
    assert "".join(pieces) == text and len(pieces) < 0.6 * len(text)
    assert all(len(piece) == 1 for piece in pieces if any(sign.isdigit() for sign in piece))
    assert len(TOKENIZER) <= SMALL.vocabulary


def test_a_seed_names_the_weights():
    (one, _), (same, _), (other, _) = (tiny_model(words(), SMALL, seed) for seed in (0, 0, 1))
    assert all(map(torch.equal, one.parameters(), same.parameters()))
    assert not all(map(torch.equal, one.parameters(), other.parameters()))


def test_a_model_that_cannot_be_written_whole_leaves_the_one_before(tmp_path):
    """The file system lets no file grow beyond a part of the weights."""
    folder = tmp_path / "model"
    save_model(MODEL, TOKENIZER, folder)
    weights = (folder / "model.safetensors").read_bytes()
    other = frozen_copy(MODEL)
    next(other.parameters()).zero_()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(weights) // 2, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            save_model(other, TOKENIZER, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (folder / "model.safetensors").read_bytes() == weights and not (folder / ".partial").exists()
    # What a killed process left.
    (folder / ".partial").mkdir()
    (folder / ".partial" / "half").write_text("")
    save_model(other, TOKENIZER, folder)
    assert (folder / "model.safetensors").read_bytes() != weights
    assert not (folder / ".partial").exists() and not (folder / "half").exists()


def test_a_full_disk_is_told_by_its_number(tmp_path, monkeypatch):
    def full(self, folder):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(type(MODEL), "save_pretrained", full)
    with pytest.raises(OSError, match="No space") as told:
        save_model(MODEL, TOKENIZER, tmp_path)
    assert told.value.errno == errno.ENOSPC


def test_a_folder_gives_back_model_and_tokenizer(tmp_path):
    save_model(MODEL, TOKENIZER, tmp_path / "model")
    model, tokenizer = load_model(str(tmp_path / "model"))
    assert all(map(torch.equal, model.state_dict().values(), MODEL.state_dict().values()))
    text = words()[1]
    assert tokenizer(text)["input_ids"] == TOKENIZER(text)["input_ids"]
    own, read = chat_format(MODEL, TOKENIZER), chat_format(model, tokenizer)
    assert (own.stop, own.pad, own.openings(["s"], [text])) == (read.stop, read.pad, read.openings(["s"], [text]))
    assert longest_context(model) == SMALL.longest and not model.training


def test_adapters_are_merged_into_what_is_written(tmp_path):
    model, tokenizer = small_model()
    adapted = with_adapters(model, 2)
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    with torch.no_grad():
        for parameter in trained:
            parameter.normal_(0.0, 0.1)
        tokens = torch.tensor([[7, 8, 9, 30]])
        expected = adapted(tokens).logits
    save_model(adapted, tokenizer, tmp_path / "model")
    written, _ = load_model(str(tmp_path / "model"))
    assert torch.allclose(written(tokens).logits, expected, atol=1e-4)
    assert not torch.allclose(MODEL(tokens).logits, expected, atol=1e-2)
    # What goes on learning is not what was written.
    assert torch.equal(adapted(tokens).logits, expected)


def test_a_place_without_a_model_is_named(tmp_path):
    with pytest.raises(ValueError, match=f"{tmp_path}: no causal language model with a tokenizer could be loaded"):
        load_model(str(tmp_path))


@pytest.mark.parametrize(
    ("setting", "value"), [("hidden", 0), ("layers", 0), ("heads", 5), ("vocabulary", 260), ("longest", 1)]
)
def test_bad_sizes_are_refused(setting, value):
    with pytest.raises(ValueError, match="hidden" if setting == "heads" else setting):
        TinyConfig(**{setting: value})
