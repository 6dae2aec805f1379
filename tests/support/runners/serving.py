"""A server for tests in a thread of its own, and a plain HTTP client."""

import contextlib
import http.client
import json
import threading
import time

from tessera.models.paged import bytes_of_page
from tessera.models.writer import Writer
from tessera.serve.engine import ServeLimits
from tessera.serve.run import listen, server
from tessera.serve.service import Options, Service

PAGES = 16


class Client:
    """Requests to one server."""

    def __init__(self, port, service, server=None):
        self.port, self.service, self.server = port, service, server

    def request(self, method, path, body=None, headers=()):
        """Status and the bytes of a reply."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        raw = json.dumps(body).encode() if isinstance(body, dict | list) else body
        try:
            c.request(method, path, raw, {"Content-Type": "application/json", **dict(headers)})
            reply = c.getresponse()
            return reply.status, reply.read()
        finally:
            c.close()

    def post(self, path, body, headers=()):
        """Status and the object of a reply."""
        status, raw = self.request("POST", path, body, headers)
        return status, json.loads(raw)

    def stream(self, path, body):
        """The events of a streamed reply."""
        status, raw = self.request("POST", path, body | {"stream": True})
        assert status == 200, raw
        lines = raw.decode().split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]

    def opened(self, body, path="/v1/completions"):
        """A connection that has sent a request and read nothing."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request("POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        return c

    def until(self, good, seconds=20.0):
        """Wait for something to hold."""
        end = time.monotonic() + seconds
        while not good() and time.monotonic() < end:
            time.sleep(0.01)
        assert good()


@contextlib.contextmanager
def serving(model, options=None, waiting=256):
    """A client of a server that runs meanwhile; its cache has few pages, and as many in all tests, which
    share programs.
    """
    memory = PAGES * bytes_of_page(model) if isinstance(model, Writer) else 0
    service = Service(model, "tiny", ServeLimits(memory, waiting=waiting), options or Options())
    made = server(service, 5, 1000)
    with listen("127.0.0.1", 0) as socket:
        thread = threading.Thread(target=made.run, kwargs={"sockets": [socket]})
        thread.start()
        client = Client(socket.getsockname()[1], service, made)
        client.until(lambda: made.started)
        try:
            yield client
        finally:
            made.should_exit = True
            thread.join(30)
            assert not thread.is_alive()
