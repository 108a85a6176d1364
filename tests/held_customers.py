"""A customer service that holds some answers back: `python FILE HOST`.

Prints its port. If a name contains `held`, it prints the name and answers once the same name
arrives on standard input. The first two letters of the name are the country of the customer.
"""

import json
import sys
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread

released: defaultdict[str, Event] = defaultdict(Event)
one_at_a_time = Lock()


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        customer = self.path.rpartition("/")[2]
        if "held" in customer:
            with one_at_a_time:
                print(customer, flush=True)
                gate = released[customer]
            gate.wait()
        content = json.dumps({"country": customer[:2].upper()}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Logs nothing: the asking process may be dead when its answer comes."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # the pipeline opens a connection for each concurrent request


def main() -> None:
    server = Server((sys.argv[1], 0), Answer)
    Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    for line in sys.stdin:
        with one_at_a_time:
            released[line.strip()].set()


if __name__ == "__main__":
    main()
