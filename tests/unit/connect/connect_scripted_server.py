"""A server over real gRPC that answers by a script, for the drivers and the sessions."""

import threading
from concurrent import futures

import grpc
import pyarrow as pa

from solstice.connect._protocol import load_protocol

PATH = "/spark.connect.SparkConnectService/"


def arrow(values):
    batch = values if isinstance(values, pa.RecordBatch) else pa.record_batch({"n": values})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


class ScriptedServer:
    """Serves ``batches`` (lists of numbers) to every query; ``hooks`` by method may fail, wait or answer instead."""

    def __init__(self, credentials=None):
        self.protocol = load_protocol()
        self.batches = [[1, 2], [3]]
        self.hooks = {}
        self.settings = {}
        self.calls = []
        self.changed = threading.Condition()
        handlers = {
            "ExecutePlan": (self._stream, True),
            "ReattachExecute": (self._stream, True),
            "AnalyzePlan": (self._analyze, False),
            "ReleaseExecute": (self._nothing, False),
            "ReleaseSession": (self._nothing, False),
            "Config": (self._config, False),
            "Interrupt": (self._interrupt, False),
            "CloneSession": (self._nothing, False),
        }
        self._grpc = grpc.server(futures.ThreadPoolExecutor(8))
        self._grpc.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    PATH.strip("/"), {name: self._handler(name, *rest) for name, rest in handlers.items()}
                ),
            )
        )
        if credentials is None:
            self.port = self._grpc.add_insecure_port("127.0.0.1:0")
        else:
            self.port = self._grpc.add_secure_port("127.0.0.1:0", credentials)
        self._grpc.start()

    def url(self, parameters=""):
        return f"sc://127.0.0.1:{self.port}/;{parameters}"

    def stop(self):
        self._grpc.stop(0).wait()

    def requests(self, name):
        return [request for called, request, _ in self.calls if called == name]

    def wait_for(self, name, count=1):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.requests(name)) >= count, timeout=10), f"no {name} came"
        return self.requests(name)

    def assert_ended(self, operation_id):
        [release] = self.wait_for("ReleaseExecute")
        assert (release.operation_id, release.WhichOneof("release")) == (operation_id, "release_all")

    def _handler(self, name, answer, streams):
        request_type = {"ReattachExecute": "ReattachExecuteRequest"}.get(name, f"{name}Request")

        def handle(request, context):
            with self.changed:
                self.calls.append((name, request, dict(context.invocation_metadata())))
                self.changed.notify_all()
            if name in self.hooks:
                yield from self.hooks[name](request, context) or ()
            yield from answer(request)

        make = grpc.unary_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
        return make(
            handle if streams else lambda request, context: next(handle(request, context)),
            request_deserializer=getattr(self.protocol, request_type).FromString,
            response_serializer=lambda response: response.SerializeToString(),
        )

    def _stream(self, request):
        last = getattr(request, "last_response_id", "")
        for number, values in enumerate(self.batches):
            if last and number <= int(last):
                continue
            yield self.response(number, values)
        yield self.protocol.ExecutePlanResponse(response_id="end", result_complete={})

    def response(self, number, values):
        batch = {"data": arrow(values), "row_count": len(values)}
        return self.protocol.ExecutePlanResponse(
            response_id=str(number), server_side_session_id="server-1", arrow_batch=batch
        )

    def _analyze(self, request):
        answer = self.protocol.AnalyzePlanResponse(server_side_session_id="server-1")
        if request.HasField("schema"):
            field = answer.schema.schema.struct.fields.add(name="n", nullable=True)
            field.data_type.integer.SetInParent()
        else:
            answer.spark_version.version = "4.3.0"
        yield answer

    def _config(self, request):
        """Settings as they were set in this server; those that nobody set have no value."""
        answer = self.protocol.ConfigResponse()
        operation = request.operation
        for pair in operation.set.pairs:
            self.settings[pair.key] = pair.value
            answer.warnings.extend(["old"] if pair.key == "deprecated" else [])
        for key in operation.unset.keys:
            self.settings.pop(key, None)
        for pair in operation.get_with_default.pairs:
            value = self.settings.get(pair.key, pair.value if pair.HasField("value") else None)
            answer.pairs.add(key=pair.key, value=value)
        for key in operation.get.keys:
            answer.pairs.add(key=key, value=self.settings[key])
        for key in operation.is_modifiable.keys:
            answer.pairs.add(key=key, value="true" if key.startswith("spark.sql") else "false")
        if operation.HasField("get_all"):
            for key, value in self.settings.items():
                answer.pairs.add(key=key, value=value)
        yield answer

    def _interrupt(self, request):
        yield self.protocol.InterruptResponse(interrupted_ids=[request.operation_id or request.operation_tag or "all"])

    def _nothing(self, request):
        name = type(request).__name__.replace("Request", "Response")
        yield getattr(self.protocol, name)()


def once(action):
    """A hook that acts on the first call only."""
    done = []

    def hook(request, context):
        if not done:
            done.append(True)
            return action(request, context)
        return None

    return hook


def abort(code, message, trailing=()):
    def action(request, context):
        context.set_trailing_metadata(trailing)
        context.abort(code, message)

    return action


def error_details(message="sorry", **info):
    protocol = load_protocol()
    status = protocol.message("google.rpc.Status")(code=13, message=message)
    for name, fields in info.items():
        value = protocol.message(f"google.rpc.{name}")(**fields).SerializeToString()
        status.details.add(type_url=f"type.googleapis.com/google.rpc.{name}", value=value)
    return (("grpc-status-details-bin", status.SerializeToString()),)
