"""``python -m vecenv.benchmarks.realism.agent_market``: the table of realism."""

from __future__ import annotations

import tyro

from vecenv.benchmarks.realism.agent_market.table import RealismConfig, main

if __name__ == "__main__":
    main(tyro.cli(RealismConfig))
