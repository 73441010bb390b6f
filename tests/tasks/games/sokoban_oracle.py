"""Sokoban by its rules page in plain Python: boards are lists of characters in the notation of level files."""

from dataclasses import dataclass, field

STEPS = ((-1, 0), (1, 0), (0, -1), (0, 1))


@dataclass
class Oracle:
    """One episode; ``boxes``, ``targets`` and ``floor`` are sets of (row, column)."""

    rows: list[str]
    max_steps: int = 100
    box_reward: float = 1.0
    steps: int = 0
    effective: bool = False
    boxes: set = field(default_factory=set)
    targets: set = field(default_factory=set)
    floor: set = field(default_factory=set)

    def __post_init__(self):
        for row, line in enumerate(self.rows):
            for column, mark in enumerate(line):
                place = row, column
                if mark != "#":
                    self.floor.add(place)
                if mark in "$*":
                    self.boxes.add(place)
                if mark in ".*+":
                    self.targets.add(place)
                if mark in "@+":
                    self.player = place

    def step(self, move):
        """Move, 0 to 3 or 4 for none, and return the reward."""
        on = len(self.boxes & self.targets)
        self.steps, self.effective = self.steps + 1, False
        if move < 4:
            ahead, beyond = self.ahead(self.player, move), self.ahead(self.ahead(self.player, move), move)
            if ahead in self.boxes and beyond in self.floor and beyond not in self.boxes:
                self.boxes = self.boxes - {ahead} | {beyond}
            if ahead in self.floor and ahead not in self.boxes:
                self.player, self.effective = ahead, True
        reward = -0.1 + self.box_reward * (len(self.boxes & self.targets) - on)
        return reward + 10 * self.solved

    @staticmethod
    def ahead(place, move):
        return place[0] + STEPS[move][0], place[1] + STEPS[move][1]

    @property
    def solved(self):
        return self.boxes <= self.targets

    @property
    def deadlocked(self):
        """Whether a box off the targets can never be moved: those that can be are taken away, one after the other."""
        left = set(self.boxes)
        while movable := {box for box in left if self.movable(box, left)}:
            left -= movable
        return bool(left - self.targets)

    def movable(self, box, boxes):
        return any(
            all((one := self.ahead(box, move)) in self.floor and one not in boxes for move in moves)
            for moves in ((0, 1), (2, 3))
        )

    def drawn(self):
        """Return the board in the notation of level files."""
        return ["".join(self.mark((row, column)) for column in range(len(line))) for row, line in enumerate(self.rows)]

    def mark(self, place):
        if place not in self.floor:
            return "#"
        on = place in self.targets
        return "*$"[not on] if place in self.boxes else "+@"[not on] if place == self.player else ". "[not on]
