"""Delivery through a log, as a model whose every state is visited: two messages, any number of faults.

The agent writes each batch to a log, and acknowledges it then; Spark's tasks read the log. The model has Pub/Sub, one
agent with its buffer, the log (batches, and what is left of a batch that was consumed: the ids of its messages), and
Spark (the offset log, the commit log, a sink that skips a batch it has seen). Checked are

- safety: what is acknowledged is in the sink, or in the log and still to be read;
- exactly once: no message is in the sink twice;
- liveness: from every state, without a further fault, all messages can still arrive and be acknowledged, and the log
  be emptied.

The faults: a crash between any two steps, also in the middle of a write or of a deletion; a write that lands after its
writer's death; leases and acknowledgements lost; messages that come again although they were acknowledged; the last
entry of the commit log lost. Two more, which nothing may be lost to either, can double messages: a checkpoint that
is deleted while its log stays, and an old planner that lives on while a new one works.

Each rule has a mutant that breaks it, and the model must notice every one. The model is wider than what is built: it
cuts at any time, not only when Spark asks, and plans the batches of the log in any order.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import pytest

from delivery_model import Broken, Rules, Step, Walk, walk

Messages = frozenset[int]

ALL: Messages = frozenset({0, 1})
NONE: Messages = frozenset()

RULES = {
    "1: acked after the write": Broken("lost", "acknowledged when it is cut; crash in the middle of the write"),
    "2: what is incomplete is no batch": Broken(
        "lost", "crash in the middle of a write; the next life counts its ids as seen and acknowledges what comes again"
    ),
    "3: what is incomplete is deleted before a new life cuts": Broken(
        "twice", "a dead writer's last write lands after its messages came again and were cut again"
    ),
    "4: a name is used once, and carries the epoch": Broken(
        "lost", "counting on from start alone, a batch overwrites one that is not planned yet"
    ),
    "5: a written batch never changes": Broken("lost", "rows are added to a batch after its tasks have read it"),
    "6: a replay reads the stored batch": Broken(
        "lost", "planned empty because its epoch is old, as without a log; but here it is acknowledged already"
    ),
    "7: what Spark never heard of is planned": Broken("stuck", "crash between the write and Spark's offset log"),
    "8: deleted when Spark asks for what follows": Broken(
        "lost", "deleted when a task has read it; the task fails, and its next attempt finds the batch consumed"
    ),
    "9: exactly the batch that start names is deleted": Broken(
        "lost", "'up to start' takes in a batch with a lower number that is not planned yet"
    ),
    "10: silence is never emptiness": Broken("lost", "a file that cannot be read is taken for an empty one"),
    "11: a consumed batch is replayed empty": Broken(
        "stuck", "the last commit is lost: Spark replays a batch whose rows are gone, and fails for ever"
    ),
    "12: what is known is dropped": Broken("twice", "the ack is lost; the message comes again and is cut again"),
    "13: a new life learns the ids from the log": Broken("twice", "crash before the ack; the message comes again"),
    "14: ids outlive their rows": Broken("twice", "the ack is lost, the batch consumed and deleted; then a crash"),
    "15: ids whose ack is not confirmed are kept": Broken(
        "twice", "the ack is lost, the batch deleted, its ids expire; then the message comes again"
    ),
    "16: the ids of the last batch are kept": Broken(
        "stuck", "they expire, and nothing tells that the batch was consumed when its commit turns out to be lost"
    ),
    "17: a copy is acked after its first is written": Broken(
        "lost", "a lease is lost during the write, the copy is acknowledged, crash before the write is done"
    ),
    "18: a copy is acked too": Broken("stuck", "the ack is lost; the message comes again and again, always dropped"),
    "19: a life acks only while the log is its own": Broken(
        "lost",
        "a new life deletes the unfinished batch of a planner that still lives, which then acknowledges it",
        where="two planners",
    ),
    "20: a life claims the log before it looks through it": Broken(
        "lost",
        "the same, as the old planner finds the log still its own between the look and the claim",
        where="two planners",
    ),
}


class Name(NamedTuple):
    """Of a batch; also the offset at its end. Each crash numbers the old ones anew, so that the states are finite."""

    epoch: str  # now, old
    seq: int


NOTHING = Name("", 0)  # the initial offset
FORGOTTEN = Name("forgotten", 0)  # stands for names that are not in use any more


class Batch(NamedTuple):
    name: Name
    rows: Messages


class Consumed(NamedTuple):
    """What is left of a batch whose rows are deleted."""

    name: Name
    ids: Messages
    confirmed: bool  # Pub/Sub confirmed all their acks


class Rival(NamedTuple):
    """An old planner that lives on, cut off from its Spark, in the middle of its last batch."""

    batch: Batch
    doing: str = "cutting"  # cutting, writing, checking, acking
    owns_log: bool = True


class State(NamedTuple):
    # Pub/Sub; what is over does not come again
    waiting: Messages = ALL
    acked: Messages = NONE
    over: Messages = NONE
    # planner and agent; the buffer is None when there are none
    buffer: Messages | None = None
    known: Messages = NONE
    writing: Batch | None = None
    acking: Messages = NONE
    confirmed: Messages = NONE
    rival: Rival | None = None
    # the log; a torn batch is one that its writer did not live to finish
    log: frozenset[Batch] = frozenset()
    torn: Batch | None = None
    consumed: frozenset[Consumed] = frozenset()
    # Spark; the sink has a message as often as it was written, up to twice
    phase: str = "down"  # down, starting, replay, idle, planned, stored
    committed: Name = NOTHING
    planned: Name | None = None
    sink: tuple[int, ...] = ()
    batch_in_sink: bool = False

    @property
    def held(self) -> Messages:
        """What the agent keeps the lease of."""
        return (self.buffer or NONE) | self.acking | (self.writing.rows if self.writing else NONE)

    @property
    def names(self) -> set[Name]:
        """Those in use."""
        batches = (*self.log, self.writing, self.torn, self.rival and self.rival.batch)
        return {NOTHING, self.committed, self.planned or NOTHING} | {batch.name for batch in batches if batch}

    def is_consumed(self, name: Name) -> bool:
        return any(left.name == name for left in self.consumed)


class World(NamedTuple):
    """Which faults can happen besides the usual ones, and whether each message is promised to come only once."""

    checkpoint_deleted: bool = False
    two_planners: bool = False
    exactly_once: bool = False
    begin: State = State()


# Where one message is enough: the other is through before anything happens.
ONE_MESSAGE = State(waiting=frozenset({0}), acked=frozenset({1}), over=frozenset({1}), sink=(1,))
WORLDS = {
    "usual": World(exactly_once=True),
    "checkpoint deleted": World(checkpoint_deleted=True),
    "two planners": World(two_planners=True, begin=ONE_MESSAGE),
}


def steps(rules: Rules, world: World, state: State) -> Iterator[Step[State]]:
    """What can happen next."""
    for what, after, fault in all_steps(rules, world, state):
        yield Step(what, tidy(after), fault)


def tidy(state: State) -> State:
    """Leave out what makes no difference any more, so that the states are finite and few."""
    in_use, consumed = state.names, set[Consumed]()
    for left in state.consumed:
        if left.name in in_use:
            consumed.add(left)
        else:
            consumed.update(Consumed(FORGOTTEN, frozenset({message}), left.confirmed) for message in left.ids)
    return state._replace(
        # A dead agent's leases end some time: as good as now.
        waiting=state.waiting | (ALL - state.acked - state.held),
        confirmed=state.confirmed & rows_of(state.log),
        consumed=frozenset(consumed),
    )


def rows_of(batches: frozenset[Batch]) -> Messages:
    return NONE.union(*(batch.rows for batch in batches))


def all_steps(rules: Rules, world: World, state: State) -> Iterator[Step[State]]:
    for message in ALL - state.waiting - state.over:
        what = "comes again though it is acked" if message in state.acked else "loses its lease"
        yield Step(f"{message} {what}", state._replace(waiting=state.waiting | {message}), fault=True)
    if state.phase in ("down", "starting"):
        yield from start(state, rules)
    else:
        yield from in_the_agent(state, rules)
        yield from in_spark(state, rules, world)
    if state.phase != "down":
        yield Step("crash", crashed(state), fault=True)
    elif world.checkpoint_deleted:
        fresh = state._replace(committed=NOTHING, planned=None, batch_in_sink=False)
        yield Step("the checkpoint is deleted", fresh, fault=True)
    if state.torn is not None:
        yield Step("a dead writer's write lands", written(state._replace(torn=None), state.torn), fault=True)
    if world.two_planners:
        yield from in_the_rival(state, rules)


def start(state: State, rules: Rules) -> Iterator[Step[State]]:
    """A new life claims the log, looks through it, and only then cuts and plans."""
    claim_first = rules.holds("20: a life claims the log before it looks through it")
    if (state.phase == "down") == claim_first:
        rival = state.rival and state.rival._replace(owns_log=False)
        yield Step("claim", state._replace(rival=rival, phase="starting") if claim_first else begun(state, rival))
    else:
        looked = look(state, rules)
        yield Step("look", begun(looked, looked.rival) if claim_first else looked._replace(phase="starting"))


def look(state: State, rules: Rules) -> State:
    """Learn the ids of the log, delete what is incomplete."""
    known = rows_of(state.log).union(*(left.ids for left in state.consumed))
    if state.torn is not None and not rules.holds("2: what is incomplete is no batch"):
        known |= state.torn.rows
    if rules.holds("3: what is incomplete is deleted before a new life cuts"):
        state = state._replace(torn=None)
    return state._replace(known=known if rules.holds("13: a new life learns the ids from the log") else NONE)


def begun(state: State, rival: Rival | None) -> State:
    return state._replace(buffer=NONE, rival=rival, phase="idle" if state.planned is None else "replay")


def crashed(state: State) -> State:
    """Planner, agent and JVM go; the log, Spark's logs, the sink and Pub/Sub stay. What was now is old."""
    in_log = sorted(state.log, key=lambda batch: (sorted(batch.rows), batch.name))
    batches = (*in_log, state.writing, state.torn, state.rival and state.rival.batch)
    named = (state.committed, state.planned, *(batch.name for batch in batches if batch))
    in_order = dict.fromkeys(name for name in named if name and name.epoch)
    renamed = {name: Name("old", number) for number, name in enumerate(in_order, start=1)}

    def aged(name: Name) -> Name:
        return renamed.get(name, name)

    def aged_batch(batch: Batch) -> Batch:
        return batch._replace(name=aged(batch.name))

    torn = state.writing or state.torn
    return State(
        waiting=state.waiting,
        acked=state.acked,
        over=state.over,
        rival=state.rival and state.rival._replace(batch=aged_batch(state.rival.batch)),
        log=frozenset(map(aged_batch, state.log)),
        torn=torn and aged_batch(torn),
        consumed=frozenset(left._replace(name=aged(left.name)) for left in state.consumed),
        committed=aged(state.committed),
        planned=state.planned and aged(state.planned),
        sink=state.sink,
        batch_in_sink=state.batch_in_sink,
    )


def in_the_agent(state: State, rules: Rules) -> Iterator[Step[State]]:
    assert state.buffer is not None
    known = state.known if rules.holds("12: what is known is dropped") else NONE
    if state.writing and not rules.holds("17: a copy is acked after its first is written"):
        known |= state.writing.rows
    for message in state.waiting:
        taken = state._replace(waiting=state.waiting - {message})
        if message not in known:
            yield Step(f"{message} comes", taken._replace(buffer=state.buffer | {message}))
        elif rules.holds("18: a copy is acked too"):
            yield Step(f"a copy of {message} is dropped and acked", taken._replace(acked=state.acked | {message}))
        else:
            yield Step(f"a copy of {message} is dropped", taken)
    if state.buffer and state.writing is None:
        yield Step(f"cut {set(state.buffer)}", cut(state, rules))
    if state.writing is not None:
        rows = state.writing.rows
        done = written(state._replace(writing=None), state.writing)
        done = done._replace(known=state.known | rows, acking=state.acking | rows)
        if rules.holds("12: what is known is dropped"):
            done = done._replace(buffer=state.buffer - rows)
        yield Step(f"{set(rows)} written", done)
    for message in state.acking:
        lost = state._replace(acking=state.acking - {message})
        acked = lost._replace(acked=state.acked | {message})
        yield Step(f"ack of {message}", acked._replace(confirmed=state.confirmed | {message}))
        yield Step(f"ack of {message}, its confirmation lost", acked, fault=True)
        yield Step(f"ack of {message} lost", lost, fault=True)
    for left in state.consumed:
        if may_expire(state, left, rules):
            kept, over = state.consumed - {left}, state.over | (left.ids & state.acked)
            yield Step(
                f"ids {set(left.ids)} expire", state._replace(consumed=kept, known=state.known - left.ids, over=over)
            )


def cut(state: State, rules: Rules) -> State:
    """The buffer becomes a batch, whose write begins."""
    assert state.buffer is not None
    last = max(name.seq for name in state.names if name.epoch != "old")
    batch = Batch(Name("now", last + 1), state.buffer)
    if not rules.holds("4: a name is used once, and carries the epoch"):
        batch = batch._replace(name=Name(NOTHING.epoch, state.committed.seq + 1))
    if state.log and not rules.holds("5: a written batch never changes"):
        grown = min(state.log)
        batch = Batch(grown.name, grown.rows | state.buffer)
    if not rules.holds("1: acked after the write"):
        state = state._replace(acking=state.acking | batch.rows)
    return state._replace(buffer=NONE, writing=batch)


def written(state: State, batch: Batch) -> State:
    """The batch is in the log, in place of what has its name."""
    return state._replace(log=frozenset(other for other in state.log if other.name != batch.name) | {batch})


def may_expire(state: State, left: Consumed, rules: Rules) -> bool:
    """Time is not in the model: logRetention is taken to be longer than the agent keeps a message that was not cut,
    and than Pub/Sub goes on to send copies of one that is acknowledged.
    """
    assert state.buffer is not None
    if left.name in (state.committed, state.planned) and rules.holds("16: the ids of the last batch are kept"):
        return False
    if not left.confirmed and rules.holds("15: ids whose ack is not confirmed are kept"):
        return False
    return not left.ids & (state.buffer | state.waiting)


def in_spark(state: State, rules: Rules, world: World) -> Iterator[Step[State]]:
    if state.phase == "idle":
        yield from ask(state, rules)
    if state.phase == "replay":
        yield Step("replay", state._replace(phase="planned"))
    if state.phase == "planned":
        yield from run_tasks(state, rules, world)
    if state.phase == "stored":
        assert state.planned is not None
        yield Step("commit", state._replace(committed=state.planned, planned=None, batch_in_sink=False, phase="idle"))


def ask(state: State, rules: Rules) -> Iterator[Step[State]]:
    """latestOffset(start): the batch that start names goes, then one that is left in the log is planned."""
    due = [batch for batch in state.log if batch.name == state.committed]
    if not rules.holds("9: exactly the batch that start names is deleted"):
        due = [batch for batch in state.log if batch.name.seq <= state.committed.seq]
    for batch in due:
        half, deleted = consumed(state, batch, rules)
        yield Step(f"{set(batch.rows)} deleted", deleted)
        yield Step("crash in the middle of a deletion", crashed(half), fault=True)
        yield Step("crash in the middle of a deletion, the last commit lost", uncommitted(half), fault=True)
    if not due:
        for batch in state.log:
            if batch.name.epoch != "old" or rules.holds("7: what Spark never heard of is planned"):
                yield Step(f"plan {set(batch.rows)}", state._replace(planned=batch.name, phase="planned"))
        if state.committed != NOTHING:
            yield Step("crash, the last commit lost", uncommitted(state), fault=True)


def consumed(state: State, batch: Batch, rules: Rules) -> tuple[State, State]:
    """First the ids are set aside, then the rows are deleted: the states after one and after both."""
    left = Consumed(batch.name, batch.rows, batch.rows <= state.confirmed)
    if rules.holds("14: ids outlive their rows"):
        state = state._replace(consumed=state.consumed | {left})
    return state, state._replace(log=state.log - {batch})


def uncommitted(state: State) -> State:
    """With asynchronous progress, Spark asks for what follows a batch before the commit log has it."""
    return crashed(state._replace(planned=state.committed, committed=NOTHING, batch_in_sink=True))


def run_tasks(state: State, rules: Rules, world: World) -> Iterator[Step[State]]:
    """Tasks read the planned batch, and the sink takes the rows unless it has seen the batch. No rows: they fail."""
    assert state.planned is not None
    batch = next((batch for batch in state.log if batch.name == state.planned), None)
    outcomes = []
    if batch is not None:
        empty = batch.name.epoch == "old" and not rules.holds("6: a replay reads the stored batch")
        outcomes.append(NONE if empty else batch.rows)
        if not rules.holds("8: deleted when Spark asks for what follows"):
            yield Step("tasks read and fail", consumed(state, batch, rules)[1])
    elif state.is_consumed(state.planned) and rules.holds("11: a consumed batch is replayed empty"):
        outcomes.append(NONE)
    if not rules.holds("10: silence is never emptiness"):
        outcomes.append(NONE)
    for rows in outcomes:
        # Where a message may come twice, how often it came is of no interest.
        most = 2 if world.exactly_once else 1
        sink = [*state.sink, *(row for row in rows if state.sink.count(row) < most)]
        after = state._replace(batch_in_sink=True, phase="stored")
        yield Step(
            f"tasks write {set(rows) or 'nothing'}",
            after if state.batch_in_sink else after._replace(sink=tuple(sorted(sink))),
        )


def in_the_rival(state: State, rules: Rules) -> Iterator[Step[State]]:
    """The old planner goes on with its last batch, whatever the new one does. It may also end at any time."""
    rival = state.rival
    if rival is None:
        if state.writing is not None:
            apart = crashed(state)
            assert apart.torn is not None
            apart = apart._replace(torn=None, rival=Rival(apart.torn))
            yield Step("a new planner starts beside the old one", apart, fault=True)
        return
    if rival.doing == "cutting":
        after = state._replace(torn=rival.batch, rival=rival._replace(doing="writing"))
    elif rival.doing == "writing":
        after = state._replace(rival=rival._replace(doing="checking"))
        if state.torn == rival.batch:  # or its rows are deleted, and nothing is complete
            after = written(after._replace(torn=None), rival.batch)
    elif rival.doing == "checking":
        acks = rival.owns_log or not rules.holds("19: a life acks only while the log is its own")
        after = state._replace(rival=rival._replace(doing="acking") if acks else None)
    else:
        after = state._replace(rival=None, acked=state.acked | rival.batch.rows)
    yield Step(f"the old planner is done with {rival.doing}", after, fault=True)
    yield Step("the old planner ends", state._replace(rival=None), fault=True)


def explore(rules: Rules, world: World) -> Walk:
    def harm(state: State) -> str:
        to_be_read = frozenset(
            batch for batch in state.log if batch.name != state.committed and not state.is_consumed(batch.name)
        )
        if not state.acked <= rows_of(to_be_read).union(state.sink):
            return "lost"
        return "twice" if world.exactly_once and len(set(state.sink)) < len(state.sink) else ""

    def done(state: State) -> bool:
        return state.acked == ALL == set(state.sink) and not state.log and state.planned is None

    return walk(world.begin, partial(steps, rules, world), harm, done)


def test_nothing_is_lost_or_doubled_and_everything_can_still_arrive_in_every_state() -> None:
    found = explore(Rules(RULES), WORLDS["usual"])
    assert found.wrong == "", found
    assert found.states == 11_633


@pytest.mark.parametrize(("where", "states"), [("checkpoint deleted", 32_902), ("two planners", 6_641)])
def test_nothing_is_lost_either_where_a_message_may_come_twice(where: str, states: int) -> None:
    found = explore(Rules(RULES), WORLDS[where])
    assert found.wrong == "", found
    assert found.states == states
    assert explore(Rules(RULES), WORLDS[where]._replace(exactly_once=True)).wrong == "twice"


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(rule: str) -> None:
    rules, world = Rules(RULES, broken=rule), WORLDS[RULES[rule].where]
    found = explore(rules, world._replace(begin=ONE_MESSAGE))
    if not found.wrong:
        found = explore(rules, world)
    assert found.wrong == RULES[rule].harm, found
