"""Order of stocks by hierarchical clustering, so that sectors appear as blocks of a correlation matrix."""

from __future__ import annotations

import numpy as np


def cluster_order(correlation: np.ndarray) -> np.ndarray:
    """Return stocks in the order of the leaves of a tree of average linkage on the distance 1 - correlation.

    Two clusters are joined so that the most correlated of their ends lie side by side (UPGMA: Sokal and Michener, "A
    statistical method for evaluating systematic relationships", University of Kansas Science Bulletin 38, 1958; joined
    ends as in Gruvaeus and Wainer, British Journal of Mathematical and Statistical Psychology 25, 1972).

    Args:
        correlation: NaN where unknown, which counts as 0. Shape: (N, N).

    Returns:
        Positions of the stocks. Shape: (N,).
    """
    known = np.nan_to_num(correlation)
    clusters = [[stock] for stock in range(len(known))]
    mean = known.copy()
    np.fill_diagonal(mean, -np.inf)
    while len(clusters) > 1:
        first, second = sorted(np.unravel_index(np.argmax(mean), mean.shape))
        sizes = len(clusters[first]), len(clusters[second])
        joined = (sizes[0] * mean[first] + sizes[1] * mean[second]) / sum(sizes)
        mean[first], mean[:, first] = joined, joined
        mean[first, first] = -np.inf
        mean = np.delete(np.delete(mean, second, axis=0), second, axis=1)
        clusters[first] = _side_by_side(clusters[first], clusters.pop(second), known)
    return np.array(clusters[0])


def _side_by_side(left: list[int], right: list[int], correlation: np.ndarray) -> list[int]:
    """Join two orders, of which either may be reversed, where their ends are correlated most."""
    ways = [(one, other) for one in (left, left[::-1]) for other in (right, right[::-1])]
    one, other = max(ways, key=lambda way: correlation[way[0][-1], way[1][0]])
    return one + other
