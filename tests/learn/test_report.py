"""The run folder: numbers and pictures."""

from __future__ import annotations

import json

import matplotlib.image
import pytest

import vecenv
from tests.learn.test_learning_curve import HISTORY
from vecenv.learn.report import write_run_folder


@pytest.mark.assembly
def test_run_folder(evaluation, tmp_path):
    folder = tmp_path / "new" / "run"
    written = write_run_folder(folder, {"seed": 7, "settings": {"hidden": [64, 64]}}, evaluation, [HISTORY], "oracle")
    read = json.loads((folder / "metrics.json").read_text())
    assert read["vecenv_version"] == vecenv.__version__
    assert read["seed"] == 7
    assert read["evaluation"]["task_version"] == evaluation.metadata["task_version"]
    assert read["evaluation"]["market"]["fingerprint"] == evaluation.metadata["market"]["fingerprint"]
    assert read["evaluation"]["agents"]["oracle"]["sharpe"] == written["evaluation"]["agents"]["oracle"]["sharpe"]
    assert read["worst_days"] == written["worst_days"]
    assert len(read["worst_days"]) == 10
    for name in ("learning_curve", "equity", "drawdown", "exposure", "holdings", "worst_days"):
        picture = matplotlib.image.imread(folder / f"{name}.png")
        assert picture.shape[1] > 1000
        assert len({tuple(pixel) for pixel in picture[::7, ::7].reshape(-1, picture.shape[-1]).tolist()}) > 3, name


def test_unknown_agent(evaluation, tmp_path):
    with pytest.raises(ValueError, match=r"no agent 'ppo' in the evaluation; it has hold, random"):
        write_run_folder(tmp_path, {}, evaluation, agent="ppo")
