"""A walk through every state of a small model of a protocol.

A model gives the steps that can follow a state. The walk tells whether a state is reached that does harm, and whether
from every state the good end can still be reached without a further fault. What it finds wrong it tells as a history:
the shortest row of steps that leads there.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

S = TypeVar("S", bound=Hashable)

# A model that grows without end is a mistake in the model.
MOST_STATES = 100_000


class Step(NamedTuple, Generic[S]):
    what: str
    after: S
    fault: bool = False


class Broken(NamedTuple):
    """What leaving out a rule does, and the history that does it."""

    harm: str
    history: str
    where: str = "usual"  # the world that shows it


@dataclass(frozen=True)
class Rules:
    """The rules of a protocol, all of them kept but the one that is ``broken``."""

    table: Mapping[str, Broken]
    broken: str = ""

    def holds(self, rule: str) -> bool:
        assert rule in self.table, rule
        return self.broken != rule


class Walk(NamedTuple):
    states: int
    wrong: str  # the harm, or "stuck"; empty when all is well
    history: str

    def __str__(self) -> str:
        return f"{self.wrong or 'all is well'} in {self.states} states: {self.history}"


def walk(
    begin: S, steps: Callable[[S], Iterable[Step[S]]], harm: Callable[[S], str], done: Callable[[S], bool]
) -> Walk:
    """Visit every state, nearest first, until one does harm; then see that each can still be ``done``."""
    came_by: dict[S, tuple[S, str] | None] = {begin: None}
    calm_steps_to: dict[S, list[S]] = {begin: []}
    frontier = deque([begin])
    while frontier:
        state = frontier.popleft()
        if found := harm(state):
            return Walk(len(came_by), found, _history(state, came_by))
        for what, after, fault in steps(state):
            if after not in came_by:
                came_by[after] = (state, what)
                calm_steps_to[after] = []
                frontier.append(after)
            if not fault:
                calm_steps_to[after].append(state)
        assert len(came_by) < MOST_STATES, _history(state, came_by)
    good = {state for state in came_by if done(state)}
    frontier.extend(good)
    while frontier:
        for before in calm_steps_to[frontier.popleft()]:
            if before not in good:
                good.add(before)
                frontier.append(before)
    stuck = next((state for state in came_by if state not in good), None)
    return Walk(len(came_by), "", "") if stuck is None else Walk(len(came_by), "stuck", _history(stuck, came_by))


def _history(state: S, came_by: Mapping[S, tuple[S, str] | None]) -> str:
    def backwards(at: S) -> Iterator[str]:
        while (before := came_by[at]) is not None:
            at, what = before
            yield what

    return f"{', '.join(reversed(list(backwards(state))))} -> {state}"
