"""Names of the indicators that tasks show by default."""

FINRL_INDICATORS = ("macd", "boll_ub", "boll_lb", "rsi_30", "cci_30", "dx_30", "close_30_sma", "close_60_sma")
"""FinRL's eight, in its order."""

TIER_FEATURES = (
    "daily_change",
    "rsi_14",
    "macd_state",
    "trend_state",
    "bollinger_zone",
    "volume_ratio_20",
    "volatility_level",
    "momentum_10",
    "regime_state",
    "candle",
    "gap_state",
    "range_state",
)
"""Features per symbol of the trading tiers: the day's change and eleven indicators."""
