"""Registration record of trading on replayed order books."""

from __future__ import annotations

from vecenv.registry import Task
from vecenv.tasks.crypto_lob.agents import BASELINES
from vecenv.tasks.crypto_lob.config import CryptoLobConfig
from vecenv.tasks.crypto_lob.scenario import CryptoLob

CRYPTO_LOB = Task(
    name="crypto_lob",
    version="1",
    scenario=CryptoLob,
    config=CryptoLobConfig,
    agents=BASELINES,
    reference="hold",
    outcomes={
        "total_return": "share",
        "annual_sharpe": "count",
        "max_drawdown": "share",
        "romad": "count",
        "trades": "count",
        "win_share": "share",
        "turnover": "count",
        "exposure": "share",
    },
)
