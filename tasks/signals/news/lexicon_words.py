"""English words that tell sentiment or risk in financial news, with their weights."""

from __future__ import annotations

_GROUPS: dict[tuple[float, float], str] = {
    # Sentiment, risk: 1 a word that tells something, 2 one that tells much.
    (2.0, 0.0): """
        best excellent great outstanding superb exceptional soar soars soared soaring surge surges surged surging
        skyrocket skyrockets skyrocketed triumph triumphs stellar breakthrough record doubles doubled double
    """,
    (1.0, 0.0): """
        good better strong stronger strength robust healthy profitable profitability gain gains gained
        growth grow grows growing grew rise rises rising rose climb climbs climbed climbing jump jumps jumped
        rally rallies rallied rebound rebounds rebounded recover recovers recovered recovery beat beats beating
        exceed exceeds exceeded outperform outperforms outperformed upgrade upgrades upgraded upbeat optimistic
        optimism bullish success successes successful succeed succeeds win wins won winning award awards awarded
        improve improves improved improvement improving expand expands expanded boost boosts boosted lift lifts
        lifted raise raises raised higher increase increases increased positive favourable favorable praise praises
        praised welcome welcomes welcomed please pleases pleased delight delights delighted impress impresses
        impressed impressive attractive opportunity opportunities leader leading innovative innovation advance
        advances advanced accelerate accelerates accelerated efficient efficiency progress popular bigger boom booms
        booming thrive thrives thriving achieve achieves achieved achievement approval approved approves deliver
        delivers delivered undervalued bargain reward rewards rewarded promising lucrative outpace outpaces
    """,
    (1.0, -1.0): """
        solid sound reassure reassures reassured reassuring trusted confident confidence resilient resilience
        resolves resolved clears cleared
    """,
    (-2.0, 0.0): "worst terrible awful dreadful dismal horrible abysmal",
    (-1.0, 0.0): """
        bad worse weak weaker weakness poor poorly loss losses lose loses losing lost fall falls falling fell drop
        drops dropped dropping decline declines declined declining decrease decreases decreased dip dips dipped slip
        slips slipped slide slides slid sink sinks sank shrink shrinks shrank shrinking tumble tumbles tumbled miss
        misses missed missing disappoint disappoints disappointed disappointing disappointment downgrade downgrades
        downgraded underperform underperforms underperformed negative pessimistic pessimism bearish fail fails
        failed failing failure failures suffer suffers suffered suffering struggle struggles struggled struggling
        hurt hurts hit hits cut cuts cutting lower slow slows slowed slowdown sluggish shortfall deficit
        complain complains complaint complaints critic critics criticise criticised criticism wrong delay delays
        delayed layoff layoffs fire fires fired closure closures halt halts halted reject rejects rejected overvalued
        unprofitable inferior obsolete stagnant stagnation recession smaller fine fined penalty penalties
        damage damages damaged dispute disputes quit quits trouble troubled downturn lag lags lagged
        impairment writedown drag drags
    """,
    (-1.0, 1.0): """
        warn warns warned warning fear fears feared worry worries worried concern concerns concerned threat threats
        threaten threatens threatened doubt doubts doubted doubtful lawsuit lawsuits sue sues sued litigation
        allegation allegations alleged accused accuses probe probes unsafe
        recall recalls recalled breach breaches sanction sanctions strike strikes attack attacks attacked steal
        steals stolen hackers hacked
        downside distress distressed overleveraged indebted dilution instability
    """,
    (-2.0, 2.0): """
        crash crashes crashed crashing collapse collapses collapsed plunge plunges plunged plunging plummet plummets
        plummeted bankruptcy bankrupt insolvent insolvency default defaults defaulted fraud fraudulent scandal
        scandals crisis panic panics disaster disastrous catastrophe catastrophic explosion meltdown junk
        embezzlement liquidation delisted delisting
    """,
    (0.0, 2.0): "extreme extremes wild wildly gamble gambles gambling bubble chaos chaotic",
    (0.0, 1.0): """
        risk risks risky riskier volatile volatility uncertain uncertainty uncertainties unpredictable unclear unsure
        unstable swing swings swung speculative speculation speculate leverage leveraged bet bets rumour rumours
        rumor rumors hype untested unproven pending investigation investigations investigate investigates
        investigated exposure exposed turbulent turbulence fluctuate fluctuates fluctuation fluctuations erratic
        hazard hazards hazardous danger dangerous dangers turmoil
        unrest takeover tension tensions war tariff tariffs contingent unhedged unsecured
        precarious fragile vulnerable
    """,
    (0.0, -1.0): """
        stable stability steady steadily safe safer safety secure secured secures securing reliable calm quiet hedge
        hedged hedges hedging insured insurance prudent conservative predictable consistent consistently unchanged
        guarantee guaranteed guarantees guaranty protect protects protected protection covered covers settle settles
        settled settlement reserve reserves diversified diversification routine renew renews renewed backed fixed
        cautious defensive certainty certain recurring
    """,
}

WEIGHTS: dict[str, tuple[float, float]] = {
    word: weights for weights, words in _GROUPS.items() for word in words.split()
}
"""Sentiment and risk of each word; positive sentiment is good, positive risk is risky."""

_NEGATIONS = """
    no not never neither nor none nothing nobody without hardly barely cannot cant wont dont doesnt didnt isnt arent
    wasnt werent hasnt havent hadnt wouldnt couldnt shouldnt lacks lack
"""
_FACTORS: dict[float, str] = {
    1.5: "very extremely highly hugely sharply strongly massive massively huge deeply heavy",
    0.5: "slightly slight somewhat little small minor modest modestly marginally mildly partly",
}
_BOUNDARIES = "but yet though although however despite while whereas"

NEGATIONS = frozenset(_NEGATIONS.split())
"""Words that turn the sentiment and risk of one that follows; without apostrophes."""

FACTORS: dict[str, float] = {word: factor for factor, words in _FACTORS.items() for word in words.split()}
"""Factors of the word that follows."""

BOUNDARIES = frozenset(_BOUNDARIES.split())
"""Words that end a clause."""
