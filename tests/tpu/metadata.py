"""A metadata server of Compute Engine on this machine: values of an instance by their names, as its API gives them."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PATH = "/computeMetadata/v1/instance/"


class MetadataServer:
    """`with MetadataServer() as server:` answers at `server.address` (HOST:PORT, for GCE_METADATA_HOST).

    values: name -> value; others are not found. failing: number of requests that are answered with 503.
    """

    def __init__(self) -> None:
        self.values = {"preempted": "FALSE", "maintenance-event": "NONE"}
        self.asked: list[str] = []
        self.failing = 0

    def __enter__(self) -> "MetadataServer":
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, text = service.answer(self.path, self.headers.get("Metadata-Flavor", ""))
                self.send_response(status)
                self.send_header("Metadata-Flavor", "Google")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, flavor: str) -> tuple[int, str]:
        """Return (status, text) for a request."""
        name = path.removeprefix(PATH)
        self.asked.append(name)
        if flavor != "Google":
            return 403, "the header Metadata-Flavor is missing"
        if self.failing:
            self.failing -= 1
            return 503, "try again"
        return (200, self.values[name]) if name in self.values else (404, "not found")
