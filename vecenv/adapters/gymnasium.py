"""Registers every installed task with Gymnasium; nothing else is imported until an environment is made.

Gymnasium imports the module before the colon of an id by itself::

    gymnasium.make("vecenv.adapters.gymnasium:vecenv/portfolio")
    gymnasium.make_vec("vecenv.adapters.gymnasium:vecenv/portfolio", num_envs=1024)

After ``import vecenv.adapters.gymnasium`` the id is ``vecenv/portfolio`` alone.
"""

from importlib.metadata import entry_points

from gymnasium.envs.registration import register, registry

NAMESPACE = "vecenv"

for _task in sorted(point.name for point in entry_points(group="vecenv.tasks")):
    if f"{NAMESPACE}/{_task}" not in registry:
        register(
            f"{NAMESPACE}/{_task}",
            entry_point="vecenv.adapters.gymnasium_env:GymnasiumEnv",
            vector_entry_point="vecenv.adapters.gymnasium_vector:GymnasiumVectorEnv",
            # Episodes truncate themselves, and the checker would run at every start.
            disable_env_checker=True,
            kwargs={"task": _task},
        )
