"""One program on one symbol and bar at a time, in plain Python, from the page: numbers are NumPy's float32 scalars."""

import math

import numpy as np

from vecenv.programs.expressions import Apply, Name

F = np.float32


class Oracle:
    """The outputs of a program, given its features and those of the account by name: [bar][symbol]."""

    def __init__(self, program, features):
        self.program, self.features, self.known = program, features, {}
        self.symbols = range(len(next(iter(features.values()))[0]))

    def outputs(self, bar, symbol):
        return [self.at(Name(name), bar, symbol) for name in self.program.vocabulary.outputs]

    def at(self, line, bar, symbol):
        place = id(line), bar, symbol
        if not isinstance(line, Apply):
            return self.value(line, bar, symbol)
        if place not in self.known:
            self.known[place] = self.value(line, bar, symbol)
        return self.known[place]

    def value(self, line, bar, symbol):
        if isinstance(line, Name) and line.name in self.features:
            return self.features[line.name][bar][symbol]
        if isinstance(line, Name):
            return self.at(self.program.lines[line.name], bar, symbol)
        if not isinstance(line, Apply):
            return line.value if isinstance(line.value, bool) else F(line.value)
        first, window = line.operands[0], line.window
        if line.operation == "rank":
            return ranked([self.at(first, bar, other) for other in self.symbols], symbol)
        if line.operation in ("lag", "delta"):
            before = self.at(first, bar - window, symbol) if bar >= window else F("nan")
            return before if line.operation == "lag" else self.at(first, bar, symbol) - before
        if window:
            if bar + 1 < window:
                return F("nan")
            return of_window(line.operation, [self.at(first, bar + 1 - window + day, symbol) for day in range(window)])
        if line.operation == "if":
            return self.at(line.operands[1 if self.at(first, bar, symbol) else 2], bar, symbol)
        return of_moment(line.operation, *(self.at(operand, bar, symbol) for operand in line.operands))


def of_moment(operation, a, b=None, c=None):
    match operation:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "div":
            return F(0) if b == 0 else a / b
        case "neg":
            return -a
        case "abs":
            return abs(a)
        case "plain":
            return a
        case "sign":
            return a if math.isnan(a) else F((a > 0) - int(a < 0))
        case "min":
            return (a if a < b or math.isnan(a) else b) + F(0)
        case "max":
            return (a if a > b or math.isnan(a) else b) + F(0)
        case "clip":
            return of_moment("min", of_moment("max", a, b), c)
        case "lt":
            return bool(a < b)
        case "le":
            return bool(a <= b)
        case "gt":
            return bool(a > b)
        case "ge":
            return bool(a >= b)
        case "eq":
            return bool(a == b)
        case "ne":
            return bool(a != b)
        case "and":
            return a and b
        case "or":
            return a or b
        case "not":
            return not a


def of_window(operation, window):
    if operation in ("highest", "lowest"):
        found = window[0] + F(0)
        for number in window[1:]:
            found = of_moment("max" if operation == "highest" else "min", found, number)
        return found
    total = np.float64(0)
    for number in window:
        total += np.float64(number)
    mean = total / len(window)
    if operation == "mean":
        return F(mean)
    squares = np.float64(0)
    for number in window:
        squares += (np.float64(number) - mean) * (np.float64(number) - mean)
    return F(np.sqrt(squares / (len(window) - 1)))


def ranked(numbers, symbol):
    own = numbers[symbol]
    if math.isnan(own):
        return own
    below, equal = sum(bool(one < own) for one in numbers), sum(bool(one == own) for one in numbers)
    return (F(below) + (F(equal) + F(1)) * F(0.5)) / F(sum(not math.isnan(one) for one in numbers))
