"""Both clients, ours and the installed pyspark's, over servers that only answer questions: what they would send.

One expression, evaluated in both worlds, gives two lists of messages; ``compared`` brings them into one form.
"""

import contextlib
import datetime
import decimal
import enum
import io
import os
import re
import warnings
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow as pa

import solstice.connect as sc
from solstice.connect import Column, DataFrame
from solstice.connect import _session as our_session
from solstice.connect._encode import encode, encode_query
from solstice.connect._execution import Batch, CommandResult
from solstice.connect._keep import TableArg
from solstice.connect._protocol import load_protocol
from solstice.connect._requests import Requests
from solstice.connect._url import parse_endpoint

CONFIG = {
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.session.localRelationCacheThreshold": "1048576",
    "spark.sql.session.localRelationSizeLimit": "3221225472",
    "spark.sql.session.localRelationChunkSizeRows": "10000",
    "spark.sql.session.localRelationChunkSizeBytes": "16777216",
    "spark.sql.session.localRelationBatchOfChunksSizeBytes": "1073741824",
    "spark.sql.execution.pandas.convertToArrowArraySafely": "false",
    "spark.sql.execution.pandas.inferPandasDictAsMap": "false",
    "spark.sql.pyspark.inferNestedDictAsStruct.enabled": "false",
    "spark.sql.pyspark.legacy.inferArrayTypeFromFirstElement.enabled": "false",
    "spark.sql.pyspark.legacy.inferMapTypeFromFirstPair.enabled": "false",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    "spark.connect.session.planCompression.threshold": "-1",
    "spark.connect.session.planCompression.defaultAlgorithm": "NONE",
    "spark.sql.execution.pyspark.binaryAsBytes": "true",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.execution.pandas.structHandlingMode": "legacy",
    "spark.sql.execution.arrow.pyspark.selfDestruct.enabled": "false",
}
# The questions that both clients may ask when they like; the others are part of what is compared.
_CELLS = {
    "show_string": {"x": ["shown"]},
    "approx_quantile": {"x": [[[1.0]]]},
    "cov": {"x": [1.0]},
    "corr": {"x": [1.0]},
}
_PRINTED = "printed"
_FREE_QUESTIONS = {"schema", "ddl_parse", "is_streaming"}


class Answers:
    """The answers of a server that has one schema, ``a INT, b STRING, c DOUBLE``, and records what it is asked."""

    def __init__(self, messages):
        self.messages = messages
        self.asked = []

    def analyze(self, request):
        question = request.WhichOneof("analyze")
        answer = self.messages.AnalyzePlanResponse(session_id=request.session_id)
        getattr(answer, question).SetInParent()
        if question not in _FREE_QUESTIONS:
            self.asked.append(getattr(request, question))
        if question == "schema":
            self._struct(answer.schema.schema)
        elif question == "ddl_parse":
            self._struct(answer.ddl_parse.parsed)
        elif question == "get_storage_level":
            answer.get_storage_level.storage_level.use_memory = True
        return answer

    def _struct(self, message):
        for name, kind in (("a", "integer"), ("b", "string"), ("c", "double")):
            field = message.struct.fields.add(name=name, nullable=True)
            getattr(field.data_type, kind).SetInParent()

    def config(self, request):
        kind = request.operation.WhichOneof("op_type")
        answer = self.messages.ConfigResponse(session_id=request.session_id)
        asked = getattr(request.operation, kind)
        for key in [pair.key for pair in asked.pairs] if kind == "get_with_default" else asked.keys:
            answer.pairs.add(key=key, value=CONFIG[key])
        return answer

    def execute(self, plan):
        """Batches of Arrow data for a query, the name and fields of a result for a command."""
        if not _may_come_or_not(plan):
            self.asked.append(plan)
        if plan.WhichOneof("op_type") == "root":
            kind = plan.root.WhichOneof("rel_type")
            columns = _CELLS.get(kind, {"a": pa.array([1], pa.int32()), "b": ["x"], "c": [1.5]})
            return [("arrow_batch", {"row_count": 1, "data": _stream(pa.table(columns))})]
        if plan.command.WhichOneof("command_type") == "checkpoint_command":
            return [("checkpoint_command_result", {"relation": {"relation_id": "r1"}})]
        return []


def _may_come_or_not(plan):
    """Whether it is a query in SQL, which the official client lets the server look at first and ours does not.

    Or a message that something is not needed any more, which may come at any time.
    """
    if plan.command.WhichOneof("command_type") == "remove_cached_remote_relation_command":
        return True
    command = plan.command.sql_command.input
    query = command.with_relations.root if command.WhichOneof("rel_type") == "with_relations" else command
    return query.sql.query.startswith("select")


def _stream(table):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


class OurDriver:
    """Stands for the driver of a session."""

    def __init__(self, answers):
        self.answers = answers
        self.endpoint = parse_endpoint("sc://localhost")
        self.requests = Requests(load_protocol(), self.endpoint)
        self.uploads = {}

    async def unary(self, method, request, **_):
        if method == "Config":
            return self.answers.config(request)
        return self.answers.analyze(request)

    async def execute(self, operation_id, fill, tags):
        request = self.requests.execute(operation_id, tags)
        fill(request.plan)
        for kind, fields in self.answers.execute(request.plan):
            if kind == "arrow_batch":
                yield Batch(fields["data"], fields["row_count"])
            else:
                yield CommandResult(kind, getattr(load_protocol().ExecutePlanResponse(**{kind: fields}), kind))

    async def upload(self, name, data):
        self.uploads[name] = data

    def check_open(self):
        pass


class OurClient:
    def __init__(self):
        self.answers = Answers(load_protocol())
        self.driver = OurDriver(self.answers)
        self.session = our_session.Session(self.driver, "4.3.0")

    def names(self):
        return {
            "spark": self.session,
            "F": sc.functions,
            "Window": sc.Window,
            "T": sc.types,
            "StorageLevel": sc.StorageLevel,
            "Row": sc.Row,
            "Observation": sc.Observation,
        }

    def plans(self, result):
        if isinstance(result, list | tuple):
            return [plan for each in result for plan in self.plans(each)]
        if isinstance(result, TableArg):
            message = load_protocol().Expression()
            encode(result._expression, message)
            return [message]
        if isinstance(result, Column):
            result = self.session.range(1).select(result)
        if not isinstance(result, DataFrame):
            return []
        plan = load_protocol().Plan()
        encode_query(result._relation, plan)
        return [plan]


class _OfficialStub:
    """Stands for gRPC under the official client."""

    def __init__(self, answers, messages):
        self._answers, self._messages = answers, messages

    def AnalyzePlan(self, request, **_):
        return self._answers.analyze(request)

    def Config(self, request, **_):
        return self._answers.config(request)

    def ExecutePlan(self, request, **_):
        responses = [{kind: fields} for kind, fields in self._answers.execute(request.plan)]
        for fields in [*responses, {"result_complete": {}}]:
            yield self._messages.ExecutePlanResponse(session_id=request.session_id, response_id="1", **fields)

    def ReleaseSession(self, request, **_):
        return self._messages.ReleaseSessionResponse(session_id=request.session_id)


class OfficialClient:
    def __init__(self):
        import pyspark.sql.connect.proto as messages
        from pyspark.sql.connect.plan import CachedRemoteRelation
        from pyspark.sql.connect.session import SparkSession

        # It would call a server, over a channel of its own.
        self._no_releases = mock.patch.object(CachedRemoteRelation, "__del__", create=True)
        self._no_releases.start()
        self.answers = Answers(messages)
        self.session = SparkSession(connection="sc://localhost:1")
        client = self.session.client
        client._use_reattachable_execute = False
        client._stub = _OfficialStub(self.answers, messages)
        SparkSession._set_default_and_active_session(self.session)

    def close(self):
        self._no_releases.stop()
        self.session.stop()

    def names(self):
        from pyspark import StorageLevel
        from pyspark.sql import Row, types
        from pyspark.sql.connect import functions
        from pyspark.sql.connect.observation import Observation
        from pyspark.sql.connect.window import Window

        return {
            "spark": self.session,
            "F": functions,
            "Window": Window,
            "T": types,
            "StorageLevel": StorageLevel,
            "Row": Row,
            "Observation": Observation,
        }

    def plans(self, result):
        from pyspark.sql.connect.column import Column
        from pyspark.sql.connect.dataframe import DataFrame
        from pyspark.sql.connect.table_arg import TableArg

        if isinstance(result, list | tuple):
            return [plan for each in result for plan in self.plans(each)]
        if isinstance(result, TableArg):
            return [result.to_plan(self.session.client)]
        if isinstance(result, Column):
            result = self.session.range(1).select(result)
        if not isinstance(result, DataFrame):
            return []
        return [result._plan.to_proto(self.session.client)]


_LIBRARIES = {"datetime": datetime, "Decimal": decimal.Decimal, "ns": SimpleNamespace, "pa": pa}
_LIBRARIES |= {"enum": enum, "np": np, "pd": pd}


def sent(client, expression):
    """What a client sends, or would send, for an expression of Python: serialized messages with their types' names.

    Also what it prints.
    """
    client.answers.asked = []
    names = client.names() | _LIBRARIES
    spark = names["spark"]
    names |= {"df": spark.read.table("t"), "df2": spark.read.table("u")}
    # pyspark.sql.types asks the environment whether to parse text by way of Spark Connect.
    environment = mock.patch.dict(os.environ, SPARK_CONNECT_MODE_ENABLED="1")
    with warnings.catch_warnings(), environment, contextlib.redirect_stdout(io.StringIO()) as printed:
        warnings.simplefilter("ignore")
        result = eval(expression, names)
        plans = client.plans(result)
    messages = [*client.answers.asked, *plans]
    found = [(message.DESCRIPTOR.full_name, message.SerializeToString()) for message in messages]
    return [*found, (_PRINTED, printed.getvalue().encode())] if printed.getvalue() else found


def compared(messages):
    """The messages in a form in which those that mean the same are equal: ids by first appearance, no origins."""
    form = _Form()
    protocol = load_protocol()
    return [
        (name, data if name == _PRINTED else form.of(protocol.message(name).FromString(data)))
        for name, data in messages
    ]


class _Form:
    def __init__(self):
        self.ids, self.variables, self.views = {}, {}, {}

    def of(self, message):
        return {
            field.name: self._value(field, value)
            for field, value in message.ListFields()
            if not (field.name == "common" and {f.name for f, _ in value.ListFields()} <= {"origin"})
        }

    def _value(self, field, value):
        if field.name in ("pos_args", "args") and not value:
            return None
        if field.message_type and field.message_type.GetOptions().map_entry:
            return {key: self.of(entry) if hasattr(entry, "ListFields") else entry for key, entry in value.items()}
        if field.is_repeated:
            return [self._one(field, each) for each in value]
        return self._one(field, value)

    def _one(self, field, value):
        if field.message_type:
            return {name: part for name, part in self.of(value).items() if name != "origin"}
        if field.name == "plan_id":
            return self.ids.setdefault(value, len(self.ids))
        if field.name == "name_parts":
            prefix = value.partition("_")[0]
            return f"{prefix}_{self.variables.setdefault(value, len(self.variables))}"
        if field.full_name == "spark.connect.LocalRelation.data":
            table = pa.ipc.open_stream(value).read_all()
            return [str(field.type) for field in table.schema], [column.to_pylist() for column in table.columns]
        if isinstance(value, str):
            return re.sub(
                r"_(pyspark_connect_temp|solstice)_view_[0-9a-f]{32}",
                lambda match: f"view_{self.views.setdefault(match[0], len(self.views))}",
                value,
            )
        return value
