"""A language model by GRPO: groups of episodes with one start, and answers in words (extra `language`).

A model is a folder, a name on the hub, or smollm2, which `vecenv models fetch smollm2` brings. Three days keep it
short and tell nothing of what is learned: over so few even the oracle's grade is below that of buy and hold.
"""

import sys

from vecenv.tasks.experiment import plan, train_settings

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
rules, market = {"days": 3, "context": ("signal",)}, {"market": "planted", "num_paths": 4, "num_days": 330}
learner = {"total_frames": 48, "minibatches": 1, "answer_tokens": 6, "history_days": 0}
small = {"num_groups": 2, "group_size": 4, "episodes": 8, "compile": False}
settings = train_settings(
    task="single_stock_costs", algorithm="grpo", model=model, folder="runs/grpo",
    env=rules, learner=learner, **market, **small,
)  # fmt: skip
with plan(settings) as experiment:
    experiment.show()
    experiment.fit(watch=lambda metrics: print({name: metrics[name] for name in ("update", "frames")}))
    experiment.compare()
    experiment.write()  # the model, its table beside the model before, and conversations of both to read
