"""Small markets in long format."""

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def long_frame() -> pd.DataFrame:
    """Valid bars of AAA (10 days), BBB (10 days) and CCC (the last 6), sorted by symbol and date."""
    rng = np.random.default_rng(7)
    days = pd.bdate_range("2024-01-01", periods=10).strftime("%Y-%m-%d").to_numpy()
    frames = []
    for symbol, listed in (("AAA", days), ("BBB", days), ("CCC", days[4:])):
        close = 100 * np.exp(np.cumsum(rng.normal(0, 0.01, len(listed))))
        open_ = close * (1 + rng.normal(0, 0.005, len(listed)))
        frame = pd.DataFrame({"date": listed, "symbol": symbol, "open": open_})
        frame["high"], frame["low"] = np.maximum(open_, close) * 1.01, np.minimum(open_, close) * 0.99
        frame["close"], frame["volume"] = close, rng.integers(1_000, 9_000, len(listed)).astype(float)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)
