"""A session over a driver that answers nothing but settings, and remembers what it was given."""

from solstice.connect._protocol import load_protocol
from solstice.connect._requests import Requests
from solstice.connect._session import Session
from solstice.connect._url import parse_endpoint

SETTINGS = {
    "spark.sql.session.timeZone": "Europe/Warsaw",
    "spark.sql.session.localRelationCacheThreshold": "1000",
    "spark.sql.session.localRelationSizeLimit": "100000",
    "spark.sql.session.localRelationChunkSizeRows": "100",
    "spark.sql.session.localRelationChunkSizeBytes": "10000",
}


class Driver:
    def __init__(self, settings):
        self.settings = settings
        self.endpoint = parse_endpoint("sc://localhost")
        self.requests = Requests(load_protocol(), self.endpoint)
        self.calls = []
        self.uploads = {}

    async def unary(self, method, request, **_):
        self.calls.append((method, request))
        answer = load_protocol().ConfigResponse()
        for key in request.operation.get_option.keys:
            answer.pairs.add(key=key, value=self.settings.get(key))
        return answer

    async def execute(self, operation_id, fill, tags=()):
        request = self.requests.execute(operation_id, tags)
        fill(request.plan)
        self.calls.append(("ExecutePlan", request))
        for item in ():
            yield item

    async def upload(self, name, data):
        self.uploads[name] = data

    def check_open(self):
        pass


def session(settings=SETTINGS):
    return Session(Driver(settings), "4.3.0")
