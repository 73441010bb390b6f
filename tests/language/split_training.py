"""What ranks under test train, of which one plays and the others have the model split over them; torchrun's module."""

import faulthandler
import sys
from dataclasses import replace
from pathlib import Path

import torch

from tests.language.test_language_grpo import CONFIG
from tests.language.tiny import signal_env, small_chat, small_model
from vecenv.distributed.ranks import joined
from vecenv.language.apart import ApartGRPO
from vecenv.language.grpo import LanguageGRPO
from vecenv.language.models import with_adapters
from vecenv.language.split_model import SplitGRPO
from vecenv.learn.checkpoints import load_checkpoint, save_checkpoint
from vecenv.learn.runs import check_same_start
from vecenv.learn.shards import as_rank, ranks

ROWS, GROUP, DAYS, UPDATES, SAVED = 4, 2, 1, 10, 5
SHARED = replace(CONFIG, shards=2, total_frames=UPDATES * DAYS * ROWS, kl_coef=0.05, learning_rate=1e-4)
# Passes of few tokens, whose number differs between the ranks.
CASES = {"full": replace(SHARED, tokens_at_once=600), "adapted": replace(SHARED, lora_rank=2, epochs=2)}


def trained(case, weights, begun=None, saved=None):
    """Return the state after all updates from some weights; that after some is saved, or begun from."""
    config, own = CASES[case], ranks()
    rows = ROWS // own.count
    env = signal_env(rows, env_ids=torch.arange(rows) + rows * own.number, days=DAYS)
    model, _ = small_model()
    model.load_state_dict(weights)
    model = with_adapters(model, config.lora_rank, 3) if config.lora_rank else model
    kind = {None: LanguageGRPO, True: ApartGRPO, False: SplitGRPO}[own.plays]
    learner = kind(env, model, small_chat(), config, GROUP)
    if begun is not None:
        learner.load_state_dict(load_checkpoint(begun, torch.device("cpu")))
        check_same_start(learner)
    while learner.update_number < UPDATES:
        learner.update()
        if learner.update_number == SAVED and saved is not None:
            state = learner.state_dict()
            if own.leads:
                save_checkpoint(state, saved)
    state = learner.state_dict()
    if own.plays is False:
        learner.finish()
        if own.leads:
            learned = {name: tensor for name, tensor in learner.model.named_parameters() if tensor.requires_grad}
            assert all(torch.equal(tensor, state["model"][name]) for name, tensor in learned.items())
    return state


def main(folder: Path) -> None:
    weights = torch.load(folder / "taught.pt", weights_only=True)
    with joined(torch.device("cpu"), 120.0) as own, as_rank(own.apart(1)):
        for case in CASES:
            state = trained(case, weights, saved=folder / f"{case}-half.pt")
            again = trained(case, weights, begun=folder / f"{case}-half.pt")
            if ranks().leads:
                torch.save([state["model"], again["model"]], folder / f"{case}.pt")


if __name__ == "__main__":
    # Where a rank stands that the system ends.
    faulthandler.enable()
    main(Path(sys.argv[1]))
