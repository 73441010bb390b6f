"""Play `contest_game` with the simulator of the FinRL contest of 2024, and write down what it makes of it.

    python -m tests.tasks.crypto_lob.record_contest FOLDER

FOLDER holds `Task_1_starter_kit/trade_simulator.py` of github.com/Open-Finance-Lab/FinRL_Contest_2024, commit
13133c7. The simulator is called as its evaluation calls it: one coin at most, 2 s a step, a slippage of 7e-7.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pandas as pd
import torch

from tests.tasks.crypto_lob.contest_game import RECORD, ROWS, STARTS, STEPS, TOLD_EVERY, choices, mids


def simulator(folder: Path, data: Path) -> object:
    """Return the contest's simulator on files of the game in a folder."""
    sides = {f"{side}_distance_3": np.zeros(ROWS) for side in ("bids", "asks")}
    pd.DataFrame({"midpoint": mids(), **sides}).to_csv(data / "book.csv", index=False)
    np.save(data / "factors.npy", np.zeros((ROWS, 8)))
    # What its configuration module would say.
    settings = SimpleNamespace(predict_ary_path=str(data / "factors.npy"), csv_path=str(data / "book.csv"))
    config = ModuleType("Task_1_starter_kit.data_config")
    config.ConfigData = lambda: settings
    sys.modules[config.__name__] = config
    sys.path.insert(0, str(folder))
    from Task_1_starter_kit.trade_simulator import TradeSimulator

    return TradeSimulator(num_sims=len(STARTS), slippage=7e-7, max_position=1, step_gap=2)


def main(folder: Path) -> None:
    """Play, and write the record."""
    with tempfile.TemporaryDirectory() as data:
        game = simulator(folder, Path(data))
    game.reset()
    game.step_is = torch.tensor(STARTS)
    positions, equities, total = [], [], np.zeros(len(STARTS))
    for step, choice in enumerate(choices()):
        _, reward, _, _ = game.step(torch.from_numpy(choice)[:, None])
        total += reward.numpy()
        # At its last step it has begun anew, with nothing held.
        positions.append(game.position.tolist())
        if (step + 1) % TOLD_EVERY == 0:
            equities.append([round(value, 4) for value in total.tolist()])
    assert game.max_step == STEPS
    played = ["".join("-0+"[position + 1] for position in column) for column in zip(*positions, strict=True)]
    record = {"repository": "Open-Finance-Lab/FinRL_Contest_2024", "commit": "13133c7", "positions": played}
    RECORD.write_text(json.dumps(record | {"equities": equities}, indent=0) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
