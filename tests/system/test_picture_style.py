"""An agent has one look in all pictures, and legends say what is drawn."""

from datetime import date

import numpy as np
from matplotlib.colors import to_hex
from matplotlib.dates import num2date

from vecenv.registry import task_named, task_names
from vecenv.system.figures import AGENTS, OTHERS, TRAINED, dated, empty_figure, legend_below, looks


def test_every_agent_of_a_task_has_a_look_of_its_own():
    for task in task_names():
        names = ["trained", "untrained", "ensemble", "best_rule", *task_named(task).agents]
        assert set(names) <= set(AGENTS), task
        shown = looks(names)
        drawn = {(look.colour, look.dashes) for look in shown.values()}
        assert len(drawn) == len(shown), task
        assert max(shown, key=lambda name: shown[name].line()["zorder"]) == "trained"
        assert max(shown, key=lambda name: shown[name].line()["linewidth"]) == "trained"


def test_a_look_depends_on_the_name_and_no_two_are_alike():
    names = ["trained", "mine", *(f"other {number}" for number in range(9))]
    shown, again = looks(names), looks(["mine", "equal weight", "trained"])
    assert again["trained"] == shown["trained"] and again["equal weight"].colour == AGENTS["equal_weight"][0]
    assert again["mine"].colour == shown["mine"].colour
    assert len({(look.colour, look.dashes) for look in shown.values()}) == len(names)
    # The first agent of a comparison without ``trained`` is what was trained; of seeds each has its own.
    alone = looks(["mine", "yours", "hold"])
    assert (alone["mine"].colour, alone["mine"].dashes) == TRAINED and alone["mine"].subject
    assert (alone["yours"].colour, alone["yours"].dashes) in OTHERS
    seeds = looks([f"trained_{seed}" for seed in range(5)])
    assert len({look.colour for look in seeds.values()}) == 5 and seeds["trained_0"].subject


def test_a_legend_has_what_is_drawn_once_and_dates_are_dates():
    figure, panels = empty_figure(2, 1, 4.0)
    days = np.arange("2020-01-01", "2020-03-01", dtype="datetime64[D]")
    for axis in panels:
        for name, look in looks(["trained", "hold"]).items():
            (line,) = axis.plot(days, np.arange(60), label=name, **look.line())
            assert to_hex(line.get_color()).upper() == AGENTS[name][0]
        dated(axis)
    legend_below(figure)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["trained", "hold"]
    figure.canvas.draw()
    assert num2date(panels[0].get_xticks()[0]).date() >= date(2019, 12, 1)
    assert "Feb" in [label.get_text() for label in panels[1].get_xticklabels()]
