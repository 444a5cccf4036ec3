"""The delivery rule as a model whose every state is visited: two messages, any number of crashes and lost leases.

The model has Pub/Sub (a message waits, is leased, or is acknowledged), one agent (its buffer and its cuts), and Spark
(the offset log, the commit log, a sink that skips a batch it has seen). Between any two steps anything may crash.
Checked are

- safety: what is acknowledged is in the sink;
- liveness: from every state, without a further fault, all messages can still arrive and be acknowledged.

Each rule of the protocol has a mutant that breaks it, and the model must notice every one. Offsets are kept relative,
so that the states are finite: an epoch is "now" (the agent that lives) or "old", a number counts from the last commit.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

MESSAGES = frozenset({0, 1})
NONE: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Offset:
    epoch: str
    seq: int


@dataclass(frozen=True)
class Cut:
    start: Offset
    end: Offset
    served: frozenset[int]
    acked_with: frozenset[int]  # the rows that its acknowledgement covers: must be what is served


@dataclass(frozen=True)
class State:
    # Pub/Sub
    waiting: frozenset[int] = MESSAGES
    acked: frozenset[int] = NONE
    # the agent; None when there is none
    buffer: frozenset[int] | None = None
    cuts: tuple[Cut, ...] = ()
    # Spark
    phase: str = "down"  # down, replay, idle, planned, stored
    committed: Offset = Offset("old", 0)
    planned: Offset | None = None
    sink: frozenset[int] = NONE
    batch_in_sink: bool = False

    @property
    def leased(self) -> frozenset[int]:
        return MESSAGES - self.waiting - self.acked

    @property
    def held(self) -> frozenset[int]:
        """What the agent that lives has, and keeps the lease of."""
        return (self.buffer or NONE).union(*(cut.acked_with for cut in self.cuts))


@dataclass(frozen=True)
class Rules:
    """Which rule is broken; the protocol breaks none."""

    broken: str = ""

    def holds(self, rule: str) -> bool:
        return self.broken != rule


def steps(state: State, rules: Rules) -> Iterator[tuple[State, bool]]:
    """What can happen next, and whether it is a fault."""
    for message in state.waiting:
        if state.buffer is not None:
            yield replace(state, waiting=state.waiting - {message}, buffer=state.buffer | {message}), False
    for message in state.leased:
        if message in state.held:
            yield expired(state, message, rules), True
        elif rules.holds("8: the agent ends with its planner"):
            # What a dead agent held comes again when its lease ends. One that lives on extends it for ever.
            yield expired(state, message, rules), False
    if state.phase == "down":
        phase = "idle" if state.planned is None else "replay"
        yield replace(state, buffer=NONE, phase=phase), False
    else:
        yield crashed(state), True
    if state.phase == "replay":
        yield from ((asked, False) for asked, _ in ask(state, rules))  # Spark may ask early
        yield from ((planned, False) for planned in replayed(state, rules))
    if state.phase == "idle":
        for asked, end in ask(state, rules):
            yield asked, False  # an answer that Spark does not use
            if end is not None:
                settled = settle_at_plan(asked, rules)
                yield replace(settled, planned=end, phase="planned"), False
    if state.phase == "planned":
        yield from ((stored, False) for stored in run_tasks(state, rules))
    if state.phase == "stored":
        yield commit(state), False


def expired(state: State, message: int, rules: Rules) -> State:
    """A lease ends: the message waits again. In the buffer its row goes, in a cut it stays (rule 7)."""
    state = replace(state, waiting=state.waiting | {message})
    if state.buffer is not None:
        state = replace(state, buffer=state.buffer - {message})
    if not rules.holds("7: what is served is what is acked"):
        state = replace(state, cuts=tuple(replace(cut, served=cut.served - {message}) for cut in state.cuts))
    return state


def crashed(state: State) -> State:
    """Planner, agent and JVM go; logs, sink and Pub/Sub stay. What was now is old."""
    planned = None if state.planned is None else Offset("old", state.planned.seq)
    return replace(
        state, buffer=None, cuts=(), phase="down", committed=Offset("old", state.committed.seq), planned=planned
    )


def ask(state: State, rules: Rules) -> list[tuple[State, Offset | None]]:
    """latestOffset(start): settle what start shows to be durable, then cut what follows it."""
    assert state.buffer is not None
    start, kept = state.committed, []
    for cut in state.cuts:
        durable = cut.end == start
        if not rules.holds("2: exactly the batch that start names is acked"):
            durable = cut.end.seq <= start.seq
        if not rules.holds("5: acks compare epochs"):
            durable = cut.end.seq == start.seq
        if durable and rules.holds("1c: the last batch is acked too"):
            state = acknowledge(state, cut)
        elif cut.start == start or durable:
            kept.append(cut)
        else:
            state = replace(state, waiting=state.waiting | (cut.acked_with & state.leased))
    state = replace(state, cuts=tuple(kept))
    known = next((cut for cut in state.cuts if cut.start == start), None)
    if known is not None and not rules.holds("4: a cut never changes"):
        late = replace(known, acked_with=known.acked_with | state.buffer)
        others = tuple(cut for cut in state.cuts if cut is not known)
        return [(replace(state, buffer=NONE, cuts=(*others, late)), known.end)]
    if known is not None:
        return [(state, known.end)]
    if not state.buffer:
        return [(state, None)]
    cut = Cut(start, Offset("now", start.seq + 1), state.buffer, state.buffer)
    state = replace(state, buffer=NONE, cuts=(*state.cuts, cut))
    if not rules.holds("1a: no ack at the cut"):
        state = acknowledge(state, cut)
    return [(state, cut.end)]


def acknowledge(state: State, cut: Cut) -> State:
    """Only a delivery whose lease still runs can be acknowledged."""
    return replace(
        state,
        acked=state.acked | (cut.acked_with & state.leased),
        cuts=tuple(other for other in state.cuts if other is not cut),
    )


def settle_at_plan(state: State, rules: Rules) -> State:
    """Mutant 1c: Spark calls commit(previous) when it plans the next batch, and only then."""
    if rules.holds("1c: the last batch is acked too"):
        return state
    for cut in state.cuts:
        if cut.end == state.committed:
            state = acknowledge(state, cut)
    return state


def replayed(state: State, rules: Rules) -> list[State]:
    """A batch of another life is planned empty (rule 3)."""
    if rules.holds("3: a replay is planned empty") or not state.buffer:
        return [replace(state, phase="planned")]
    assert state.planned is not None
    cut = Cut(state.committed, Offset("now", state.planned.seq), state.buffer, state.buffer)
    return [replace(state, buffer=NONE, cuts=(*state.cuts, cut), planned=cut.end, phase="planned")]


def run_tasks(state: State, rules: Rules) -> list[State]:
    """Tasks read the parts of the planned batch, and the sink takes the rows unless it has seen the batch."""
    cut = next((cut for cut in state.cuts if cut.end == state.planned), None)
    if cut is not None and not rules.holds("1b: no ack at the read"):
        return [acknowledge(state, cut)]
    outcomes = [NONE if cut is None else cut.served]
    if not rules.holds("6: silence is never emptiness"):
        outcomes.append(NONE)  # a stream that broke is taken for its end
    return [
        replace(
            state, sink=state.sink if state.batch_in_sink else state.sink | rows, batch_in_sink=True, phase="stored"
        )
        for rows in outcomes
    ]


def commit(state: State) -> State:
    """The commit log has the batch; numbers count from it from now on."""
    assert state.planned is not None
    shift = state.planned.seq

    def moved(offset: Offset) -> Offset:
        return Offset(offset.epoch, offset.seq - shift)

    cuts = tuple(replace(cut, start=moved(cut.start), end=moved(cut.end)) for cut in state.cuts)
    return replace(state, committed=moved(state.planned), planned=None, cuts=cuts, batch_in_sink=False, phase="idle")


def explore(rules: Rules) -> tuple[int, str]:
    """How many states there are, and what is wrong with one of them, or nothing."""
    begin = State()
    onward: dict[State, list[State]] = {}
    frontier = deque([begin])
    seen = {begin}
    while frontier:
        state = frontier.popleft()
        if not state.acked <= state.sink:
            return len(seen), f"lost: {state}"
        following = list(steps(state, rules))
        onward[state] = [after for after, fault in following if not fault]
        for after, _ in following:
            if after not in seen:
                seen.add(after)
                frontier.append(after)
    back: dict[State, list[State]] = {state: [] for state in onward}
    for state, following in onward.items():
        for after in following:
            back[after].append(state)
    good = {state for state in onward if state.acked == MESSAGES}
    frontier = deque(good)
    while frontier:
        for before in back[frontier.popleft()]:
            if before not in good:
                good.add(before)
                frontier.append(before)
    stuck = onward.keys() - good
    return len(seen), f"stuck: {min(stuck, key=repr)}" if stuck else ""


def test_nothing_is_lost_and_everything_can_still_arrive_in_every_state() -> None:
    states, wrong = explore(Rules())
    assert wrong == ""
    assert states > 500


@pytest.mark.parametrize(
    ("rule", "harm"),
    [
        ("1a: no ack at the cut", "lost"),
        ("1b: no ack at the read", "lost"),
        ("1c: the last batch is acked too", "stuck"),
        ("2: exactly the batch that start names is acked", "lost"),
        ("3: a replay is planned empty", "lost"),
        ("4: a cut never changes", "lost"),
        ("5: acks compare epochs", "lost"),
        ("6: silence is never emptiness", "lost"),
        ("7: what is served is what is acked", "lost"),
        ("8: the agent ends with its planner", "stuck"),
    ],
)
def test_each_rule_is_needed(rule: str, harm: str) -> None:
    _, wrong = explore(Rules(broken=rule))
    assert wrong.startswith(harm), wrong or "the model did not notice"
