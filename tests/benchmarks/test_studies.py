"""Studies: a made-up matrix is exact, words of all matrices are options, scripts import; windows of quarters."""

import json
from importlib import import_module
from pathlib import Path
from typing import get_type_hints
from unittest.mock import Mock

import pytest
import torch

from vecenv.benchmarks.studies import curricula
from vecenv.benchmarks.studies.__main__ import FOLDER, main, studies
from vecenv.benchmarks.studies.curricula import CurriculaConfig, teaching_signal
from vecenv.benchmarks.studies.matrix import Column, MatrixConfig, read_study, run_matrix
from vecenv.benchmarks.studies.quarterly_selection import QuarterConfig, Span, quarters, turbulence_threshold
from vecenv.tasks.commands import cli, train

STUDY = """
title: Made up
axes:
  tier: [one, two]
  costs: {free: [], dear: [--commission, "{data}/{seed}"]}
  seed: [0, 1]
together: seed
commands:
  - [prepare, "{study}/shared", --of, "{tier}"]
  - [train, --task, "{tier}", "{costs}", --seed, "{seed}", --folder, "{folder}"]
columns:
  grade: {of: agents/trained/grade, scale: 100, digits: 1}
  gap: gap
  prepared: {of: words, digits: 0, command: 0}
"""


def made_up(folder: Path, fails: str = "") -> tuple[int, list[list[str]], str, dict]:
    ran, results = [], folder / "results"

    def command(words):
        ran.append(list(words[:-2]))
        assert words[-2] == "--json"
        if fails and fails in words:
            return 2
        seed = int(words[words.index("--seed") + 1]) if "--seed" in words else 0
        interval = {"mean": 0.5 + seed, "low": 0.4, "high": None if seed else 0.625}
        told = {"agents": {"trained": {"grade": interval}}, "gap": len(words) / 8, "words": len(ran)}
        Path(words[-1]).write_text(json.dumps(told))
        return 0

    (folder / "made_up.yaml").write_text(STUDY)
    code = run_matrix(folder / "made_up.yaml", MatrixConfig(folder / "runs", Path("data"), output=results), command)
    result = json.loads((results / "study-made-up.json").read_text())
    return code, ran, (results / "study-made-up.md").read_text(), result


def test_every_combination_runs_and_has_its_figures(tmp_path):
    code, ran, page, result = made_up(tmp_path)
    runs = tmp_path / "runs" / "made_up"
    trained = [words for words in ran if words[0] == "train"]
    assert code == 0 and len(trained) == 8
    # Equal words are run once: the preparation of each tier.
    prepared = [["prepare", f"{runs}/shared", "--of", tier] for tier in ("one", "two")]
    assert [words for words in ran if words[0] == "prepare"] == prepared
    assert trained[0] == ["train", "--task", "one", "--seed", "0", "--folder", f"{runs}/one-free-0"]
    assert trained[3][3:7] == ["--commission", "data/1", "--seed", "1"] and trained[3][-1] == f"{runs}/one-dear-1"
    assert page.splitlines() == [
        *("# Made up", "", "Figures of a cell are of seed 0, 1.", ""),
        *("| tier | costs | grade | gap | prepared |", "|---|---|---|---|---|"),
        "| one | free | 50.0 (40.0 … 62.5), 150.0 | 1.12, 1.12 | 1, 1 |",
        "| one | dear | 50.0 (40.0 … 62.5), 150.0 | 1.38, 1.38 | 1, 1 |",
        "| two | free | 50.0 (40.0 … 62.5), 150.0 | 1.12, 1.12 | 6, 6 |",
        "| two | dear | 50.0 (40.0 … 62.5), 150.0 | 1.38, 1.38 | 6, 6 |",
    ]
    assert result["title"] == "Made up" and len(result["cells"]) == 8
    assert result["cells"][0]["grade"] == {"mean": 0.5, "low": 0.4, "high": 0.625}
    # Again nothing is run, and all is written as before.
    assert made_up(tmp_path)[:3] == (0, [], page)


def test_what_fails_is_told(tmp_path, capsys):
    code, ran, page, result = made_up(tmp_path, fails="--commission")
    assert code == 1 and len(ran) == 2 + 8
    error = "vecenv train ended with code 2"
    assert f"| one | dear | {error}, {error} |" in page and "| two | free | 50.0 (40.0 … 62.5), 150.0 |" in page
    assert result["cells"][2] == {"tier": "one", "costs": "dear", "seed": "0", "error": error}
    column = Column("a/b", interval=False)
    assert column.value([{"a": {"b": 2}}]) == 2 and column.value([{"a": 1}]) is None and column.text(None) == "–"
    assert column.text({"mean": 1.0, "low": 0.0, "high": 2.0}) == "1.00"
    path = tmp_path / "study.yaml"
    for old, new, words in (
        ("title: Made up", "name: Made up", "a study has axes, columns, commands, title and together"),
        ("together: seed", "together: day", "together is day, the axes are tier, costs, seed"),
        ("seed: [0, 1]", "seed: 3", "axis seed is neither a list of names nor lists of words by name"),
    ):
        path.write_text(STUDY.replace(old, new))
        with pytest.raises(ValueError, match=words):
            read_study(path)
    assert main(["tea"]) == 2 and main([]) == 2
    assert "there are exact_gradient, neural_market, order_book_agents" in capsys.readouterr().err


@pytest.mark.assembly
def test_words_of_all_matrices_are_options_of_the_commands():
    asked, trainings = [], set()

    def parsed(settings):
        asked.append(settings)
        return {}

    parsed.__annotations__ = get_type_hints(train.main)
    for name in (name for name, kind in studies().items() if kind == "matrix"):
        study = read_study(FOLDER / f"{name}.yaml")
        places = dict.fromkeys(("folder", "study", "data"), "somewhere") | {"here": str(FOLDER)}
        for place in range(max(len(values) for values in study.axes.values())):
            cell = {axis: list(values)[place % len(values)] for axis, values in study.axes.items()}
            commands = [study.words(command, cell, places) for command in study.commands]
            assert {words[0] for words in commands} <= {"train", "evaluate"}
            assert not any("{" in word for words in commands for word in words)
            trainings |= {tuple(words[1:]) for words in commands if words[0] == "train"}
    for words in sorted(trainings):
        cli._run(parsed, "train", list(words))
    assert len(asked) == len(trainings) > 20


@pytest.mark.parametrize("name", [name for name, kind in studies().items() if kind == "script"])
def test_scripts_have_a_main_of_settings(name):
    hints = get_type_hints(import_module(f"vecenv.benchmarks.studies.{name}").main)
    (kind,) = (hint for key, hint in hints.items() if key != "return")
    assert kind.__doc__ and kind.__module__.startswith("vecenv.benchmarks.studies")


def test_a_level_teaches_by_the_variance_of_its_successes():
    before = {"share_a": 0.5, "share_b": 0.25, "share_c": 0.25}
    rates = {"success_a": 0.5, "success_b": 0.75, "success_c": 1.0, "share_a": 0.0, "grade": 0.9}
    assert teaching_signal(before, rates) == pytest.approx(0.5 * 1 + 0.25 * 0.75)
    # A level without an episode tells nothing; without levels it is of the grade.
    assert teaching_signal(before, {**rates, "success_a": float("nan")}) == pytest.approx(0.25 * 0.75)
    assert teaching_signal({}, {"grade": 0.25}) == pytest.approx(0.75)


def test_results_of_curricula_are_told_together(tmp_path, monkeypatch):
    solved = {"uniform": (0.1, 0.3), "threshold": (0.4, 0.5)}

    def run(config, name, seed):
        figures = dict.fromkeys(("solved_drawn", "grade_on_the_way", "signal"), 0.5)
        return {
            "solved": solved[name][seed],
            **figures,
            "grades": [(1, 0.0), (2, 0.5)],
            "signals": [(1, 0.2), (2, 0.3)],
        }

    monkeypatch.setattr(curricula, "_run", run)
    options = {"task": "sokoban", "env": ("box_reward=0",), "episodes": 8}
    curricula.main(CurriculaConfig(**options, schedulers=("threshold",), num_seeds=2, output=tmp_path / "a"))
    path = tmp_path / "a" / "curricula-sokoban-box-reward-0.json"
    uniform = {"schedulers": ("uniform",), "num_seeds": 1, "beside": (path,), "output": tmp_path / "b"}
    first = curricula.main(CurriculaConfig(**options, **uniform | {"beside": ()}))
    assert [run["seed"] for run in first["runs"]] == [0]
    second = uniform | {"first_seed": 1, "beside": (path, tmp_path / "b" / path.name)}
    told = curricula.main(CurriculaConfig(**options, **second))
    assert [(run["seed"], run["scheduler"]) for run in told["runs"]] == [
        (0, "uniform"), (0, "threshold"), (1, "uniform"), (1, "threshold"),
    ]  # fmt: skip
    assert told["more_than_uniform"]["solved"]["threshold"]["mean"] == pytest.approx((0.3 + 0.2) / 2)
    assert told["more_than_uniform"]["solved_drawn"]["threshold"]["mean"] == 0
    assert (tmp_path / "b" / "curricula-sokoban-box-reward-0.png").is_file()
    for other, sentence in (({"episodes": 9}, "another episodes, 8, not 9"), ({"env": ()}, "another env, ")):
        with pytest.raises(ValueError, match=sentence):
            curricula.main(CurriculaConfig(**options | other, **uniform))


def test_what_a_study_of_curricula_trains_by(monkeypatch):
    asked = Mock(side_effect=InterruptedError)
    monkeypatch.setattr(curricula, "train_settings", asked)
    config = CurriculaConfig(task="sokoban", env=("box_reward=0", "dim_room=[7, 7]"))
    for name in ("threshold", "success_model", "own"):
        with pytest.raises(InterruptedError):
            curricula._run(config, name, 5)
    first, second, own = (call.kwargs for call in asked.call_args_list)
    assert first["env"] == {"num_boxes": 4, "boards": 4_096, "box_reward": 0, "dim_room": [7, 7]} and first["seed"] == 5
    assert (first["curriculum"], first["promote_above"], second["curriculum"]) == ("threshold", 0.5, "success_model")
    assert "promote_above" not in second and not {"curriculum", "promote_above"} & own.keys()


QUARTERS = QuarterConfig(min_training=50, validation=20, trading=10, embargo=3)


def test_windows_by_hand():
    first, second, third = quarters(first_day=5, num_days=113, config=QUARTERS)
    # 5 + 50 days, 3 apart, 21 days of 20 returns, 3 apart, 11 days of 10 returns.
    assert (first.training, first.validation, first.trading) == (Span(0, 55), Span(58, 79), Span(82, 93))
    assert (second.training, second.validation, second.trading) == (Span(0, 65), Span(68, 89), Span(92, 103))
    assert third.trading == Span(102, 113)
    (alone,) = quarters(0, 84, QuarterConfig(min_training=50, validation=20, trading=10, embargo=0))
    assert (alone.training, alone.validation, alone.trading) == (Span(0, 50), Span(50, 71), Span(71, 82))
    assert len(quarters(5, 93, QUARTERS)) == 1
    with pytest.raises(ValueError, match="a quarter of trading needs 93 days, 5 of them warm-up; there are 92"):
        quarters(5, 92, QUARTERS)
    # The threshold of turbulence is a quantile of the days that have a value.
    series = torch.cat([torch.zeros(50), torch.arange(1.0, 102.0)])
    assert turbulence_threshold(series, QuarterConfig(turbulence_quantile=0.9)) == pytest.approx(91.0)
    assert turbulence_threshold(series, QuarterConfig(turbulence_quantile=1.0)) == pytest.approx(101.0)
    with pytest.raises(ValueError, match="the turbulence index has no value in the training window"):
        turbulence_threshold(torch.zeros(9), QuarterConfig())
