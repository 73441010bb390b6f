"""A local server that speaks the protocol of chat completions."""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

SLOW = -1
"""Said by a model whose answer drips."""


@contextmanager
def model(said: Sequence[str | int | bytes]) -> Iterator[tuple[str, list[dict]]]:
    """Serve what a model says one after the other, and at last for ever; numbers are statuses, bytes whole bodies."""
    heard: list[dict] = []

    class Says(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            told = said[min(len(heard), len(said)) - 1]
            self.send_response(told if isinstance(told, int) and told != SLOW else 200)
            self.end_headers()
            for _ in range(20 if told == SLOW else 0):
                self.wfile.write(b" ")
                time.sleep(0.05)
            if isinstance(told, bytes):
                self.wfile.write(told)
            if isinstance(told, str):
                self.wfile.write(json.dumps({"choices": [{"message": {"content": told}}]}).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Says)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", heard
    finally:
        server.shutdown()
        server.server_close()
