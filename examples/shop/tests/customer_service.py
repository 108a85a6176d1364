"""A customer service for tests: an HTTP server on a free port.

The country of a customer is the first two letters of the name.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        customer = self.path.rpartition("/")[2]
        content = json.dumps({"country": customer[:2].upper()}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Logs nothing: a test's output is for failures."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # the pipeline has one connection for each request under way


@contextmanager
def customer_service() -> Iterator[str]:
    """Starts the service and yields its address."""
    server = Server(("127.0.0.1", 0), Answer)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
