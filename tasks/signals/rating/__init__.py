"""Ratings of symbols by their news, rewarded by the market's feedback (RLMF)."""
