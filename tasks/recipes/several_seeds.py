"""Several seeds with intervals: one table of all, each seed's policy, and their ensemble."""

from vecenv.tasks.experiment import plan, train_settings

small = {"num_envs": 64, "num_paths": 24, "episodes": 32, "compile": False}
learner = {"total_frames": 4096, "num_steps": 16}
settings = train_settings(market="planted", seeds=3, folder="runs/seeds", learner=learner, **small)
with plan(settings) as experiment:
    experiment.fit()
    evaluation = experiment.compare()
    results = experiment.write()

for name, interval in ((name, grades["grade"]) for name, grades in evaluation.grades.items()):
    print(f"{name:14} {interval.mean:.3f} ({interval.low:.3f} … {interval.high:.3f})")
print([verdict["told"] for verdict in results["verdicts"]])
