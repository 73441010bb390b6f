"""What ranks under test train, and the hash of what they have learned; as a program it starts two and four ranks."""

import json
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch.multiprocessing import start_processes

import vecenv
from vecenv.distributed.ranks import joined
from vecenv.learn import algorithm_named
from vecenv.learn.checkpoints import load_checkpoint, save_checkpoint, state_digest
from vecenv.learn.shards import ranks
from vecenv.registry import task_named

SHARDS, ROWS, UPDATES, SAVED = 8, 16, 10, 5

CASES = {
    "ppo": ("ppo", "stock_trading", {"episode_length": 3}, {"num_steps": 2, "epochs": 2}),
    "tier": ("ppo", "full_autonomous", {"days": 3}, {"num_steps": 1, "epochs": 1}),
    "groups": ("grpo", "single_stock", {"days": 3}, {"epochs": 1}),
}
MARKET = {"market": "synthetic", "market_options": {"num_paths": 2, "num_days": 400}}
GROUP = 2


def made(case: str, compiled: bool):
    algorithm, task, rules, settings = CASES[case]
    record, kind = task_named(task), algorithm_named(algorithm)
    rows = ROWS // ranks().count
    ids = torch.arange(rows) + ranks().number * rows
    rules = replace(record.config(), **rules)
    env = vecenv.make(task, rows, seed=3, compile=compiled, env_ids=ids, config=rules, **MARKET)
    frames = UPDATES * ROWS * (settings.get("num_steps") or env.scenario.longest)
    own = {"hidden": (16,), "minibatches": 2, "total_frames": frames} | settings
    config = replace(kind.config(), shards=SHARDS, **own)
    return kind.learner(env, config, *([GROUP] if kind.groups else []))


def trained(case: str, compiled: bool, begun: Path | None, saved: Path | None) -> dict[str, str]:
    """Return hashes of state and metrics after all updates; a state after some is saved, or begun from."""
    learner = made(case, compiled)
    if begun is not None:
        learner.load_state_dict(load_checkpoint(begun, torch.device("cpu")))
    metrics = {}
    while learner.update_number < UPDATES:
        metrics = learner.update()
        if saved is not None and learner.update_number == SAVED:
            state = learner.state_dict()
            if ranks().number == 0:
                save_checkpoint(state, saved)
    del metrics["samples_per_second"]
    return {"state": state_digest(learner.state_dict()), "metrics": state_digest(metrics)}


def rank(number: int, count: int, port: int, folder: Path, compiled: bool) -> None:
    """Train all cases as a rank, and go on from what two ranks have saved, if this is one of more."""
    known = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in known.items()}
    told = {}
    # Compilation is the longest step, of several minutes on a busy machine.
    with joined(torch.device("cpu"), 900.0 if compiled else 120.0) as own:
        for case in CASES:
            path = folder / f"{case}.pt"
            told[case] = trained(case, compiled, None, path if count == 2 else None)
        if count > 2:
            try:
                own.same({"settings.seed": str(int(number == 3)), "task": "one"})
            except ValueError as error:
                told["differs"] = {"message": str(error)}
            told |= {f"{case} goes on": trained(case, compiled, folder / f"{case}.pt", None) for case in CASES}
        if number == 0:
            (folder / f"{count}.json").write_text(json.dumps(told))


def main(folder: Path, compiled: bool) -> None:
    """Start two ranks, then four, in processes that have not to import everything again."""
    for count in (2, 4):
        port = free_port()
        start_processes(rank, (count, port, folder, compiled), count, start_method="fork")


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


if __name__ == "__main__":
    main(Path(sys.argv[1]), os.environ.get("COMPILED") == "1")
