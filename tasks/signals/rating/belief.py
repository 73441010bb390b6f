r"""What can be known of the next moves on the market of synthetic news: the ceilings of rating.

The belief of a symbol is the probability that its direction is up less that of down, given what is known. Since the
direction persists, its mean j days later is the belief times $(1 - 2 \mathrm{flip})^j$, and the expected move over h
days is, to first order in returns,

    strength x belief x ((1 - q^h) / (1 - q)),    q = 1 - 2 flip.

So on a given market the belief ranks moves as their conditional expectation does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.market.panels import Panels
from vecenv.tasks.signals.news.headlines import HEADLINES, RISKS, TONES
from vecenv.tasks.signals.news_law import NewsLaw, known_of_signs


def told_by(panels: Panels) -> tuple[Tensor, Tensor, Tensor]:
    """Return tone and risk of the headlines, -1, 0 or 1, and where there is one. Shape of each: (P, T, K).

    Raises ValueError if the texts are not those of the market of synthetic news.
    """
    if panels.text is None or panels.texts != HEADLINES:
        raise ValueError("tone and risk are known of synthetic headlines alone")
    there, headline = panels.text >= 0, panels.text.clamp(min=0)
    tone, risk = (torch.tensor(values, device=headline.device)[headline] for values in (TONES, RISKS))
    return tone, risk, there


def filtered_belief(law: NewsLaw, returns: Tensor, panels: Panels) -> Tensor:
    """Return the belief, in [-1, 1], at each close, given all returns and headlines up to it. Shape: (P, T, K)."""
    return _belief(known_of_signs(law, returns, *told_by(panels)))


def read_belief(law: NewsLaw, returns: Tensor, panels: Panels, recent_days: int) -> Tensor:
    """Return the belief, in [-1, 1], of a reader of one day's headline and the last returns. Shape: (P, T, K), float64.

    Before them nothing is known: either sign is as likely, as always without news. The forward filter runs over the
    shown days, with news on the last alone. It is 0 on the first ``recent_days`` days, on which no episode starts.
    """
    tone, risk, there = told_by(panels)
    belief, width = torch.zeros_like(returns), recent_days + 1
    windows = returns.unfold(1, width, 1).movedim(-1, 2).flatten(0, 1)

    def on_last(values: Tensor) -> Tensor:
        """(P, T, K) to (P T', width, K), of which the last day is that of the window."""
        last = values[:, width - 1 :].flatten(0, 1).unsqueeze(1)
        return torch.cat([torch.zeros_like(last).expand(-1, width - 1, -1), last], dim=1)

    known = known_of_signs(law, windows, on_last(tone), on_last(risk), on_last(there))[:, -1]
    belief[:, width - 1 :] = _belief(known).unflatten(0, (len(returns), -1))
    return belief


def _belief(known: Tensor) -> Tensor:
    """Return the belief from the probabilities of (direction, danger). Shape: (..., 4) -> (...)."""
    return known[..., 2:].sum(-1) - known[..., :2].sum(-1)
