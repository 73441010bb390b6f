"""The tiny model and its tokenizer, folders that give back what was written, and names that a hub or a cache knows."""

import errno
import resource
import threading
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import constants
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError

from tests.language.tiny import SMALL, small_model, words
from vecenv.language import hub
from vecenv.language.hub import found_model, hub_fault
from vecenv.language.models import chat_format, frozen_copy, load_model, longest_context, save_model, with_adapters
from vecenv.language.tiny_config import TinyConfig
from vecenv.language.tiny_model import tiny_model

MODEL, TOKENIZER = small_model()
NAME, REVISION = "someone/some-model", "0" * 40


def same_weights(one, other) -> bool:
    return all(map(torch.equal, one.parameters(), other.parameters()))


@given(st.text(max_size=60))
def test_any_text_survives(text):
    tokens = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    assert TOKENIZER.decode(tokens, skip_special_tokens=False) == text
    assert all(0 <= token < len(TOKENIZER) for token in tokens)


def test_the_texts_of_the_task_are_short_digits_are_alone_and_a_seed_names_the_weights():
    text = words()[0]
    tokens = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    pieces = [TOKENIZER.decode([token]) for token in tokens]
    assert "".join(pieces) == text and len(pieces) < 0.6 * len(text)
    assert all(len(piece) == 1 for piece in pieces if any(sign.isdigit() for sign in piece))
    assert len(TOKENIZER) <= SMALL.vocabulary
    assert same_weights(MODEL, small_model()[0]) and not same_weights(MODEL, tiny_model(words(), SMALL, 1)[0])
    for setting, value in (("hidden", 0), ("layers", 0), ("heads", 5), ("vocabulary", 260), ("longest", 1)):
        with pytest.raises(ValueError, match="hidden" if setting == "heads" else setting):
            TinyConfig(**{setting: value})


def test_a_folder_gives_back_model_and_tokenizer(tmp_path):
    save_model(MODEL, TOKENIZER, tmp_path / "model")
    model, tokenizer = load_model(str(tmp_path / "model"))
    assert all(map(torch.equal, model.state_dict().values(), MODEL.state_dict().values()))
    text = words()[1]
    assert tokenizer(text)["input_ids"] == TOKENIZER(text)["input_ids"]
    own, read = chat_format(MODEL, TOKENIZER), chat_format(model, tokenizer)
    assert (own.stop, own.pad, own.openings(["s"], [text])) == (read.stop, read.pad, read.openings(["s"], [text]))
    assert longest_context(model) == SMALL.longest and not model.training
    for ends, more in ((9, {9}), ([9, 11], {9, 11})):
        model.generation_config.eos_token_id = ends
        assert chat_format(model, tokenizer).stop == own.stop | more
    with pytest.raises(ValueError, match=f"{tmp_path}: no causal language model with a tokenizer could be loaded"):
        load_model(str(tmp_path))


def test_a_model_that_cannot_be_written_whole_leaves_the_one_before(tmp_path, monkeypatch):
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

    def full(self, folder):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(type(MODEL), "save_pretrained", full)
    with pytest.raises(OSError, match="No space") as told:
        save_model(MODEL, TOKENIZER, tmp_path)
    assert told.value.errno == errno.ENOSPC


def test_adapters_are_merged_into_what_is_written(tmp_path):
    adapted, tokens = with_adapters(small_model()[0], 2), torch.tensor([[7, 8, 9, 30]])
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.normal_(0.0, 0.1)
        expected = adapted(tokens).logits
    save_model(adapted, TOKENIZER, tmp_path / "model")
    written, _ = load_model(str(tmp_path / "model"))
    assert torch.allclose(written(tokens).logits, expected, atol=1e-4)
    assert not torch.allclose(MODEL(tokens).logits, expected, atol=1e-2)
    # What goes on learning is not what was written.
    assert torch.equal(adapted(tokens).logits, expected)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return tmp_path / "cache"


def test_a_hub_that_answers_is_asked_once_for_the_model_and_not_waited_for(cache, monkeypatch):
    """Whatever it says of the model: that is for the library to read. A name may be looked up for ever."""
    asked, over = [], threading.Event()

    def fault_of(answer):
        def head(address, timeout):
            asked.append((address, timeout))
            if isinstance(answer, Exception):
                raise answer
            return over.wait(20) if answer is None else SimpleNamespace(status_code=answer)

        monkeypatch.setattr(hub, "get_session", lambda: SimpleNamespace(head=head))
        return hub_fault(NAME)

    faults = {200: None, 401: None, 404: None, 499: None, 500: "it answers 500"}
    faults |= {OSError(" no route\nmore"): "no route", TimeoutError(): "TimeoutError"}
    assert [fault_of(answer) for answer in faults] == list(faults.values())
    assert asked == [(f"{constants.ENDPOINT}/api/models/{NAME}", hub.WAIT)] * len(faults) and hub.WAIT == 1.5
    monkeypatch.setattr(hub, "WAIT", 0.1)
    try:
        assert fault_of(None) == "no answer within 0.1 seconds"
    finally:
        over.set()


def test_what_is_here_or_in_the_cache_needs_no_network(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "hub_fault", lambda name: pytest.fail("the hub was asked"))
    assert found_model(str(tmp_path)) == str(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=f"{NAME}: .* cannot be reached: HF_HUB_OFFLINE is set"):
        found_model(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "hub_fault", lambda name: None)
    assert found_model(NAME) == NAME
    place = cache / f"models--{NAME.replace('/', '--')}" / "snapshots" / REVISION
    save_model(MODEL, TOKENIZER, place)
    (place.parents[1] / "refs").mkdir()
    (place.parents[1] / "refs" / "main").write_text(REVISION)
    monkeypatch.setattr(hub, "hub_fault", lambda name: "nobody is there")
    assert found_model(NAME) == str(place) and same_weights(load_model(NAME)[0], MODEL)
