"""Acknowledging on commit, as a model whose every state is visited: two messages, any number of faults.

The model has Pub/Sub (a message waits, is leased, or is acknowledged), one agent (its buffer and its cuts), and Spark
(the offset log, the commit log, a sink that skips a batch it has seen). Between any two steps all may crash, and any
lease may be lost. Checked are

- safety: what is acknowledged is in the sink; a run that drains the subscription leaves nothing behind;
- liveness: from every state, without a further fault, all messages can still arrive and be acknowledged, and such a
  run can still end.

Each rule of the protocol has a mutant that breaks it, and the model must notice every one. Offsets are kept relative,
so that the states are finite: an epoch is "now" (the agent that lives) or "old", a number counts from the last commit.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import pytest

from delivery_model import Broken, Rules, Step, Walk, walk

Messages = frozenset[int]

ALL: Messages = frozenset({0, 1})
NONE: Messages = frozenset()
# In a run that drains the subscription, the second message stands for a stream of messages that never ends.
LATER: Messages = frozenset({1})

RULES = {
    "1a: no ack at the cut": Broken("lost", "acknowledged at the cut; all crash before the tasks run"),
    "1b: no ack at the read": Broken("lost", "acknowledged when a task has read; the task fails before it writes"),
    "1c: the last batch is acked too": Broken("stuck", "Spark calls commit() with the next batch, which never comes"),
    "2: exactly the batch that start names is acked": Broken(
        "lost", "a replay is planned while Spark asks early: 'up to start' takes in the new agent's first cut"
    ),
    "3: a replay is planned empty": Broken(
        "lost", "crash after the sink took batch n; other rows are served as batch n and the sink skips them"
    ),
    "4: a cut never changes": Broken("lost", "asked twice, the cut grows after it was planned: acked but never served"),
    "5: acks compare epochs": Broken("lost", "a new agent's cut has the number of a batch that an old one left"),
    "6: silence is never emptiness": Broken("lost", "a stream breaks, its task takes that for the end, Spark commits"),
    "7: what is served is what is acked": Broken("lost", "a lease ends after the cut, the row goes, its ack counts"),
    "8: the agent ends with its planner": Broken("stuck", "an agent that nobody asks extends its leases for ever"),
    "9: a run that never asks again is refused": Broken("stuck", "Trigger.Once commits and is gone, every time"),
    "10a: an empty buffer is not an empty subscription": Broken(
        "ended early", "a fresh agent is asked before its first response: all messages still wait", where="drain"
    ),
    "10b: what comes later does not hold a run up": Broken(
        "stuck", "publishers never pause, so there is always one more message to wait for", where="drain"
    ),
}


class Offset(NamedTuple):
    epoch: str
    seq: int


class Cut(NamedTuple):
    start: Offset
    end: Offset
    served: Messages
    acked_with: Messages  # the rows that its acknowledgement covers: must be what is served


class State(NamedTuple):
    # Pub/Sub
    waiting: Messages = ALL
    acked: Messages = NONE
    # the agent; None when there is none
    buffer: Messages | None = None
    cuts: tuple[Cut, ...] = ()
    # Spark
    phase: str = "down"  # down, replay, idle, planned, stored; ended after a run that drained the subscription
    committed: Offset = Offset("old", 0)
    planned: Offset | None = None
    sink: Messages = NONE
    batch_in_sink: bool = False

    @property
    def leased(self) -> Messages:
        return ALL - self.waiting - self.acked

    @property
    def held(self) -> Messages:
        """What the agent that lives has, and keeps the lease of."""
        return (self.buffer or NONE).union(*(cut.acked_with for cut in self.cuts))


class Trigger(NamedTuple):
    """How Spark runs the query: on and on, or until what was published before the start is through."""

    earlier: Messages | None = None

    @property
    def drains(self) -> bool:
        return self.earlier is not None


FOREVER = Trigger()
TRIGGERS = {"usual": FOREVER, "drain": Trigger(earlier=ALL - LATER)}


def steps(rules: Rules, trigger: Trigger, state: State) -> Iterator[Step[State]]:
    """What can happen next."""
    for message in state.waiting:
        if state.buffer is not None:
            taken = state._replace(waiting=state.waiting - {message}, buffer=state.buffer | {message})
            yield Step(f"{message} comes", taken)
    for message in state.leased:
        if message in state.held:
            yield Step(f"the lease of {message} is lost", expired(state, message, rules), fault=True)
        elif rules.holds("8: the agent ends with its planner"):
            yield Step(f"a dead agent's lease of {message} ends", expired(state, message, rules))
    if state.phase in ("down", "ended"):
        phase = "idle" if state.planned is None else "replay"
        yield Step("start", state._replace(buffer=NONE, phase=phase))
    else:
        yield Step("crash", stopped(state, "down"), fault=True)
    if state.phase == "replay":
        yield Step("Spark asks early", ask(state, rules, trigger)[0])
        yield Step("replay", replayed(state, rules))
    if state.phase == "idle":
        asked, end = ask(state, rules, trigger)
        yield Step("Spark asks and does not use the answer", asked)
        if end is not None:
            yield Step("plan", settled_at_plan(asked, rules)._replace(planned=end, phase="planned"))
        if trigger.drains and is_drained(settled(state, rules, trigger), rules, trigger):
            yield Step("end of the run", stopped(settled(state, rules, trigger), "ended"))
    if state.phase == "planned":
        yield from run_tasks(state, rules)
    if state.phase == "stored":
        yield Step("commit", commit(state, rules))


def expired(state: State, message: int, rules: Rules) -> State:
    """A lease ends: the message waits again. In the buffer its row goes, in a cut it stays (rule 7)."""
    state = state._replace(waiting=state.waiting | {message})
    if state.buffer is not None:
        state = state._replace(buffer=state.buffer - {message})
    if not rules.holds("7: what is served is what is acked"):
        state = state._replace(cuts=tuple(cut._replace(served=cut.served - {message}) for cut in state.cuts))
    return state


def stopped(state: State, phase: str) -> State:
    """Planner and agent go, and often the JVM; logs, sink and Pub/Sub stay. What was now is old."""
    planned = None if state.planned is None else state.planned._replace(epoch="old")
    committed = state.committed._replace(epoch="old")
    return state._replace(buffer=None, cuts=(), phase=phase, committed=committed, planned=planned)


def ask(state: State, rules: Rules, trigger: Trigger) -> tuple[State, Offset | None]:
    """latestOffset(start): settle what start shows to be durable, then cut what follows it."""
    state, start = settled(state, rules, trigger), state.committed
    assert state.buffer is not None
    known = next((cut for cut in state.cuts if cut.start == start), None)
    if known is not None and not rules.holds("4: a cut never changes"):
        late = known._replace(acked_with=known.acked_with | state.buffer)
        others = tuple(cut for cut in state.cuts if cut is not known)
        return state._replace(buffer=NONE, cuts=(*others, late)), known.end
    if known is not None:
        return state, known.end
    if not state.buffer:
        return state, None
    cut = Cut(start, Offset("now", start.seq + 1), state.buffer, state.buffer)
    state = state._replace(buffer=NONE, cuts=(*state.cuts, cut))
    if not rules.holds("1a: no ack at the cut"):
        state = acknowledged(state, cut, trigger)
    return state, cut.end


def settled(state: State, rules: Rules, trigger: Trigger) -> State:
    """The batch that start names is acknowledged; one that was cut for another start goes back."""
    start, kept = state.committed, []
    for cut in state.cuts:
        durable = cut.end == start
        if not rules.holds("2: exactly the batch that start names is acked"):
            durable = cut.end.seq <= start.seq
        if not rules.holds("5: acks compare epochs"):
            durable = cut.end.seq == start.seq
        if durable and rules.holds("1c: the last batch is acked too"):
            state = acknowledged(state, cut, trigger)
        elif cut.start == start or durable:
            kept.append(cut)
        else:
            state = state._replace(waiting=state.waiting | (cut.acked_with & state.leased))
    return state._replace(cuts=tuple(kept))


def acknowledged(state: State, cut: Cut, trigger: Trigger = FOREVER) -> State:
    """Only a delivery whose lease still runs can be acknowledged. In an endless stream the next message waits then."""
    acked = cut.acked_with & state.leased
    endless = acked & LATER if trigger.drains else NONE
    return state._replace(
        acked=state.acked | (acked - endless),
        waiting=state.waiting | endless,
        cuts=tuple(other for other in state.cuts if other is not cut),
    )


def settled_at_plan(state: State, rules: Rules) -> State:
    """Mutant 1c: Spark calls commit(previous) when it plans the next batch, and only then."""
    if not rules.holds("1c: the last batch is acked too"):
        for cut in state.cuts:
            if cut.end == state.committed:
                state = acknowledged(state, cut)
    return state


def is_drained(state: State, rules: Rules, trigger: Trigger) -> bool:
    """Whether latestOffset says that there is nothing more, with which the run ends.

    Time is not in the model: availableNowIdle is taken to be longer than Pub/Sub needs to send what waits, and than a
    dead agent's leases last. So when nothing of the earlier messages came for that long, there is none.
    """
    assert trigger.earlier is not None
    if not rules.holds("10a: an empty buffer is not an empty subscription"):
        return not state.buffer and not state.cuts
    to_come = trigger.earlier
    if not rules.holds("10b: what comes later does not hold a run up"):
        to_come = ALL
    return not to_come & (state.waiting | state.leased)


def replayed(state: State, rules: Rules) -> State:
    """A batch of another life is planned empty (rule 3)."""
    if rules.holds("3: a replay is planned empty") or not state.buffer:
        return state._replace(phase="planned")
    assert state.planned is not None
    cut = Cut(state.committed, Offset("now", state.planned.seq), state.buffer, state.buffer)
    return state._replace(buffer=NONE, cuts=(*state.cuts, cut), planned=cut.end, phase="planned")


def run_tasks(state: State, rules: Rules) -> Iterator[Step[State]]:
    """Tasks read the parts of the planned batch, and the sink takes the rows unless it has seen the batch."""
    cut = next((cut for cut in state.cuts if cut.end == state.planned), None)
    if cut is not None and not rules.holds("1b: no ack at the read"):
        yield Step("tasks read and fail", acknowledged(state, cut))
        return
    outcomes = [NONE if cut is None else cut.served]
    if not rules.holds("6: silence is never emptiness"):
        outcomes.append(NONE)
    for rows in outcomes:
        sink = state.sink if state.batch_in_sink else state.sink | rows
        yield Step(
            f"tasks write {set(rows) or 'nothing'}", state._replace(sink=sink, batch_in_sink=True, phase="stored")
        )


def commit(state: State, rules: Rules) -> State:
    """The commit log has the batch; numbers count from it from now on."""
    assert state.planned is not None
    shift = state.planned.seq

    def moved(offset: Offset) -> Offset:
        return Offset(offset.epoch, offset.seq - shift)

    cuts = tuple(cut._replace(start=moved(cut.start), end=moved(cut.end)) for cut in state.cuts)
    state = state._replace(committed=moved(state.planned), planned=None, cuts=cuts, batch_in_sink=False, phase="idle")
    if not rules.holds("9: a run that never asks again is refused"):
        return stopped(state, "ended")
    return state


def explore(rules: Rules, trigger: Trigger) -> Walk:
    def harm(state: State) -> str:
        if not state.acked <= state.sink:
            return "lost"
        if state.phase == "ended" and trigger.earlier is not None and not trigger.earlier <= state.acked:
            return "ended early"
        return ""

    def done(state: State) -> bool:
        return state.phase == "ended" if trigger.drains else state.acked == ALL

    return walk(State(), partial(steps, rules, trigger), harm, done)


@pytest.mark.parametrize(("where", "states"), [("usual", 1_836), ("drain", 1_650)])
def test_nothing_is_lost_and_everything_can_still_arrive_in_every_state(where: str, states: int) -> None:
    found = explore(Rules(RULES), TRIGGERS[where])
    assert found.wrong == "", found
    assert found.states == states


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(rule: str) -> None:
    found = explore(Rules(RULES, broken=rule), TRIGGERS[RULES[rule].where])
    assert found.wrong == RULES[rule].harm, found
