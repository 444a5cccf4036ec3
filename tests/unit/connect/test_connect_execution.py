"""The state machine alone: scripted events, the actions they cause, no gRPC and no clock."""

import pytest

from solstice._core.retry import RetryPolicy
from solstice.connect._execution import (
    BATCHES_PER_RELEASE,
    MAX_SERVER_DELAY_S,
    Batch,
    CommandResult,
    Done,
    Emit,
    Execution,
    Expire,
    Fail,
    Progress,
    Release,
    Schema,
    Send,
    Sleep,
)
from solstice.connect._protocol import load_protocol
from solstice.connect._status import Failure

POLICY = RetryPolicy(initial_s=1.0, max_s=8.0, multiplier=2.0, jitter=0.0, max_attempts=4)
CUT = Failure("UNAVAILABLE", "Socket closed")
UNKNOWN_OPERATION = Failure("INTERNAL", "not found", error_class="INVALID_HANDLE.OPERATION_NOT_FOUND", from_spark=True)


@pytest.fixture
def execution():
    machine = Execution(policy=POLICY)
    assert machine.start() == [Send("execute")]
    return machine


def batch(response_id, data=b"rows", row_count=1, **fields):
    arrow = {"data": data, "row_count": row_count, **fields}
    return load_protocol().ExecutePlanResponse(response_id=response_id, arrow_batch=arrow)


def complete(response_id="last"):
    return load_protocol().ExecutePlanResponse(response_id=response_id, result_complete={})


def test_a_result_is_emitted_and_released_when_complete(execution):
    assert execution.response(batch("1", b"a", 2)) == [Emit(Batch(b"a", 2))]
    assert execution.response(complete()) == [Release(None), Done()]
    assert execution.cancel() is False


def test_schema_and_command_results_are_emitted(execution):
    response = load_protocol().ExecutePlanResponse(response_id="1", schema={"long": {}}, sql_command_result={})
    [schema, result] = execution.response(response)
    assert isinstance(schema.item, Schema)
    assert schema.item.message.WhichOneof("kind") == "long"
    assert isinstance(result.item, CommandResult)
    assert result.item.kind == "sql_command_result"


def test_progress_is_told_as_such(execution):
    progress = load_protocol().ExecutePlanResponse(response_id="1", execution_progress={"num_inflight_tasks": 1})
    assert execution.response(progress) == [Emit(Progress(progress.execution_progress))]


def test_what_arrived_is_released_every_ten_batches(execution):
    released = []
    for number in range(2 * BATCHES_PER_RELEASE):
        actions = execution.response(batch(str(number)))
        assert actions[0] == Emit(Batch(b"rows", 1))
        released += actions[1:]
    assert released == [Release("9"), Release("19")]


def test_a_cut_after_a_response_reattaches_behind_it(execution):
    execution.response(batch("7"))
    assert execution.failed(CUT) == [Sleep(1.0), Send("reattach", "7")]


@pytest.mark.parametrize("fields", [{"schema": {"long": {}}}, {"sql_command_result": {}}, {"execution_progress": {}}])
def test_a_cut_after_a_response_without_rows_reattaches_behind_it_too(execution, fields):
    execution.response(batch("7"))
    execution.response(load_protocol().ExecutePlanResponse(response_id="8", **fields))
    assert execution.failed(CUT) == [Sleep(1.0), Send("reattach", "8")]


def test_a_cut_before_the_first_response_reattaches_at_the_beginning(execution):
    assert execution.failed(CUT) == [Sleep(1.0), Send("reattach", None)]


def test_an_unknown_operation_before_the_first_response_is_executed_again(execution):
    execution.failed(CUT)
    assert execution.failed(UNKNOWN_OPERATION) == [Sleep(2.0), Send("execute")]


def test_an_unknown_operation_after_a_response_is_never_executed_again(execution):
    execution.response(batch("1"))
    execution.failed(CUT)
    assert execution.failed(UNKNOWN_OPERATION) == [Release(None), Fail(UNKNOWN_OPERATION)]


def test_an_unknown_operation_in_answer_to_execute_itself_is_an_error(execution):
    assert execution.failed(UNKNOWN_OPERATION) == [Release(None), Fail(UNKNOWN_OPERATION)]


def test_an_execution_that_arrived_after_all_is_reattached_not_run_twice(execution):
    known = Failure("INTERNAL", "exists", error_class="INVALID_HANDLE.OPERATION_ALREADY_EXISTS", from_spark=True)
    execution.failed(CUT)
    execution.failed(UNKNOWN_OPERATION)
    assert execution.failed(known) == [Sleep(4.0), Send("reattach", None)]


def test_a_foreign_operation_of_the_same_id_is_an_error(execution):
    known = Failure("INTERNAL", "exists", error_class="INVALID_HANDLE.OPERATION_ALREADY_EXISTS", from_spark=True)
    assert execution.failed(known) == [Release(None), Fail(known)]


def test_an_error_of_the_query_fails_at_once(execution):
    failure = Failure("INTERNAL", "division by zero", error_class="DIVIDE_BY_ZERO", from_spark=True)
    assert execution.failed(failure) == [Release(None), Fail(failure)]
    assert execution.cancel() is False


def test_delays_grow_and_tries_end(execution):
    delays = []
    for _ in range(POLICY.max_attempts - 1):
        sleep, send = execution.failed(CUT)
        delays.append(sleep.seconds)
        assert send == Send("reattach", None)
    assert delays == [1.0, 2.0, 4.0]
    assert execution.failed(CUT) == [Release(None), Fail(CUT)]


def test_every_response_gives_all_tries_back(execution):
    for number in range(10):
        execution.failed(CUT)
        execution.failed(CUT)
        execution.response(batch(str(number)))
    assert execution.failed(CUT) == [Sleep(1.0), Send("reattach", "9")]


def test_the_servers_delay_is_honoured_up_to_a_limit(execution):
    asked = Failure("RESOURCE_EXHAUSTED", "busy", retry_delay_s=30.0)
    assert execution.failed(asked)[0] == Sleep(30.0)
    endless = Failure("RESOURCE_EXHAUSTED", "busy", retry_delay_s=1e9)
    assert execution.failed(endless)[0] == Sleep(MAX_SERVER_DELAY_S)


def test_a_shorter_delay_of_the_server_does_not_shorten_ours(execution):
    assert execution.failed(Failure("UNAVAILABLE", "busy", retry_delay_s=0.001))[0] == Sleep(1.0)


def test_a_stream_that_ends_early_goes_on_at_once(execution):
    execution.response(batch("3"))
    assert execution.ended() == [Send("reattach", "3")]


def test_streams_that_bring_nothing_are_reopened_ever_slower_but_for_ever(execution):
    delays = []
    for _ in range(20):
        sleep, send = execution.ended()
        assert send == Send("reattach", None)
        delays.append(sleep.seconds)
    assert delays[:5] == [1.0, 2.0, 4.0, 8.0, 8.0]


def test_chunks_are_joined_across_a_cut(execution):
    assert execution.response(batch("1", b"ab", 5, chunk_index=0, num_chunks_in_batch=3)) == []
    execution.failed(CUT)
    assert execution.response(batch("2", b"cd", 5, chunk_index=1, num_chunks_in_batch=3)) == []
    assert execution.response(batch("3", b"ef", 5, chunk_index=2, num_chunks_in_batch=3)) == [Emit(Batch(b"abcdef", 5))]


def test_a_missing_chunk_fails(execution):
    execution.response(batch("1", b"ab", 5, chunk_index=0, num_chunks_in_batch=3))
    [release, fail] = execution.response(batch("3", b"ef", 5, chunk_index=2, num_chunks_in_batch=3))
    assert release == Release(None)
    assert "not whole" in fail.failure.message


def test_rows_that_are_missing_or_come_twice_fail(execution):
    execution.response(batch("1", row_count=10, start_offset=0))
    [_, fail] = execution.response(batch("1", row_count=10, start_offset=0))
    assert "row 0 arrived where 10 was expected" in fail.failure.message


def test_cancelling_releases_the_operation_once(execution):
    assert execution.cancel() is True
    assert execution.cancel() is False


def test_of_a_server_that_has_ended_nothing_more_is_asked(execution):
    assert execution.failed(CUT, server_ended=True) == [Release(None), Fail(CUT)]
    assert execution.cancel() is False


class Clock:
    def __init__(self):
        self.time = 100.0

    def __call__(self):
        return self.time


def test_streams_and_sleeps_last_no_longer_than_the_execution_may():
    clock = Clock()
    machine = Execution(policy=POLICY, timeout_s=10.0, now=clock)
    assert machine.start() == [Send("execute", timeout_s=10.0)]
    clock.time += 9.5
    assert machine.failed(CUT) == [Sleep(0.5), Send("reattach", timeout_s=0.5)]


@pytest.mark.parametrize("failure", [Failure("DEADLINE_EXCEEDED", "late"), CUT])
def test_an_execution_that_takes_too_long_expires_and_has_to_be_ended(failure):
    clock = Clock()
    machine = Execution(policy=POLICY, timeout_s=10.0, now=clock)
    machine.start()
    machine.response(batch("1"))
    clock.time += 10.0
    assert machine.failed(failure) == [Expire()]
    assert machine.cancel(), "the operation runs on"
