"""The packages of the distribution, found: what lies beside vecenv/ in the checkout is installed inside it."""

from setuptools import find_packages, setup

INSIDE = [pattern for folder in ("tasks", "worldmodel", "benchmarks") for pattern in (folder, f"{folder}.*")]

setup(
    packages=[
        *find_packages(include=["vecenv", "vecenv.*"]),
        *(f"vecenv.{name}" for name in find_packages(include=INSIDE)),
        "vecenv.presets",
    ]
)
