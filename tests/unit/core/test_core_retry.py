"""Retries: how long they wait and when they give up. No test waits."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice._core.retry import RetryPolicy, SystemClock, call


class ManualClock:
    """Sleeping moves the time."""

    def __init__(self):
        self.slept = []

    def now(self):
        return sum(self.slept)

    def sleep(self, seconds):
        self.slept.append(seconds)


class Flaky:
    """Fails with the given errors, then succeeds."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.calls = 0

    def __call__(self):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


POLICY = RetryPolicy(initial_s=1, max_s=5, multiplier=2, jitter=0, max_attempts=5)


def is_os_error(error):
    return isinstance(error, OSError)


def test_delays_grow_up_to_the_cap():
    assert [POLICY.delay_s(attempt) for attempt in range(1, 6)] == [1, 2, 4, 5, 5]


def test_the_delay_after_very_many_attempts_is_the_cap_and_costs_no_time_to_compute():
    start = time.process_time()
    assert RetryPolicy(initial_s=1, max_s=5, multiplier=3, jitter=0).delay_s(10**9) == 5
    assert time.process_time() - start < 1


def test_jitter_takes_its_share_of_the_delay_and_no_more():
    policy = RetryPolicy(initial_s=8, max_s=8, multiplier=1, jitter=0.25, max_attempts=2)
    assert policy.delay_s(1, lambda: 0.0) == 8
    assert policy.delay_s(1, lambda: 1.0) == 6


@given(st.integers(min_value=1, max_value=10**6), st.floats(min_value=0, max_value=1), st.floats(0, 1))
def test_no_delay_is_negative_or_above_the_cap(attempt, jitter, chance):
    policy = RetryPolicy(initial_s=0.1, max_s=30, multiplier=3, jitter=jitter, max_attempts=1)
    assert 0 <= policy.delay_s(attempt, lambda: chance) <= 30


def test_a_call_that_succeeds_at_last_gives_its_result_after_the_delays_of_the_policy():
    clock, function = ManualClock(), Flaky(OSError("a"), OSError("b"))
    assert call(function, policy=POLICY, retryable=is_os_error, clock=clock) == "done"
    assert clock.slept == [1, 2]
    assert function.calls == 3


def test_an_error_that_is_not_retryable_is_raised_at_once():
    clock, error = ManualClock(), KeyError("no")
    function = Flaky(error)
    with pytest.raises(KeyError) as caught:
        call(function, policy=POLICY, retryable=is_os_error, clock=clock)
    assert caught.value is error
    assert clock.slept == []
    assert function.calls == 1


def test_the_error_of_the_last_attempt_is_raised_as_it_is_and_nobody_waits_for_nothing():
    clock = ManualClock()
    errors = [OSError(str(number)) for number in range(9)]
    function = Flaky(*errors)
    with pytest.raises(OSError, match="4") as caught:
        call(function, policy=POLICY, retryable=is_os_error, clock=clock)
    assert caught.value is errors[4]
    assert function.calls == 5
    assert clock.slept == [1, 2, 4, 5]


def test_what_is_no_exception_is_never_retried():
    class Interrupt(BaseException):
        pass

    function = Flaky(Interrupt())
    with pytest.raises(Interrupt):
        call(function, policy=POLICY, retryable=lambda error: True, clock=ManualClock())
    assert function.calls == 1


def test_the_chance_of_the_caller_is_used():
    clock = ManualClock()
    policy = RetryPolicy(initial_s=1, max_s=1, multiplier=1, jitter=1, max_attempts=2)
    call(Flaky(OSError()), policy=policy, retryable=is_os_error, clock=clock, random=lambda: 0.75)
    assert clock.slept == [0.25]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"initial_s": -1}, "initial_s"),
        ({"initial_s": 2, "max_s": 1}, "max_s"),
        ({"multiplier": 0.5}, "multiplier"),
        ({"jitter": 1.5}, "jitter"),
        ({"max_attempts": 0}, "max_attempts"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(fields, named):
    with pytest.raises(ValueError, match=named):
        RetryPolicy(**fields)


def test_attempts_are_counted_from_one():
    with pytest.raises(ValueError, match="from 1"):
        POLICY.delay_s(0)


def test_the_system_clock_moves_by_at_least_what_was_slept():
    clock = SystemClock()
    start = clock.now()
    clock.sleep(0.01)
    assert clock.now() - start >= 0.01
