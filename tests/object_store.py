"""A local object store: the part of Cloud Storage's JSON API that the clients of this project use, in memory.

    with ObjectStore() as store:
        store.create("bucket")
        with store.environment():      # gcsfs, google-cloud-storage and tensorstore now talk to it
            ...

Objects are read whole and in ranges, written by the simple, multipart and resumable uploads, listed by prefix,
delimiter and page, copied and deleted, under generation preconditions as the service has them. The API is
described at https://cloud.google.com/storage/docs/json_api/v1. A name can be made to answer with an error.
"""

import base64
import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import re
import socket
import struct
import sys
import threading
import time
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest import mock
from urllib.parse import parse_qsl, unquote, urlsplit

import google_crc32c

Weather = int | float | str | None


class Refused(Exception):
    """An answer that is no success: `Refused(status, message)`."""


@dataclasses.dataclass(frozen=True)
class Object:
    """One generation of an object."""

    contents: bytes
    generation: int
    content_type: str
    time: float

    def resource(self, bucket: str, name: str) -> dict:
        """Its metadata as the API gives them."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(self.time)) + f".{int(self.time % 1 * 1000):03d}Z"
        crc = google_crc32c.value(self.contents).to_bytes(4, "big")
        return {
            "kind": "storage#object",
            "bucket": bucket,
            "name": name,
            "generation": str(self.generation),
            "metageneration": "1",
            "contentType": self.content_type,
            "size": str(len(self.contents)),
            "md5Hash": base64.b64encode(hashlib.md5(self.contents).digest()).decode(),
            "crc32c": base64.b64encode(crc).decode(),
            "timeCreated": moment,
            "updated": moment,
        }


class ObjectStore:
    """The server; it listens on a free port of this machine between `__enter__` and `__exit__`.

    buckets: name -> object's name -> object. denied: bucket's name -> (methods, status, message) that it answers with.
    requests: (method, path with its query) of every request, as they came. ranges: (name, first byte, last byte) of
    every range that was read. busy: object's name -> the number of next readings of it that are refused for the moment.
    weather: None, or what stands in the way of every request for now: an HTTP status, "reset" for a connection that is
    closed without an answer, or seconds by which every answer is late. It may be a function of (method, path) that
    gives one of these or None.
    locations: bucket's name -> what its description says of its place.
    moments: what a bucket held after each change, for those that are asked for: what is there when everybody who
    writes to it is killed at that moment.
    """

    def __init__(self) -> None:
        self.buckets: dict[str, dict[str, Object]] = {}
        self.denied: dict[str, tuple[tuple[str, ...], int, str]] = {}
        self.moments: dict[str, list[dict[str, Object]]] = {}
        self.requests: list[tuple[str, str]] = []
        self.ranges: list[tuple[str, int, int]] = []
        self.busy: dict[str, int] = {}
        self.weather: Weather | Callable[[str, str], Weather] = None
        self.locations: dict[str, dict] = {}
        self.uploads: dict[str, tuple[str, str, dict, bytearray]] = {}
        self.lock = threading.Lock()
        self._generations = itertools.count(int(time.time() * 1e6))
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"store": self}))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "ObjectStore":
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def variables(self) -> dict[str, str]:
        """The environment variables that send every client here, without credentials."""
        return {
            "STORAGE_EMULATOR_HOST": self.url,
            "TENSORSTORE_GCS_HTTP_URL": self.url,
            "NO_GCE_CHECK": "true",
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "local",
            "GOOGLE_CLOUD_PROJECT": "local",
        }

    def environment(self) -> contextlib.AbstractContextManager:
        """Sets `variables` for this process and those it starts."""
        return mock.patch.dict(os.environ, self.variables())

    def create(self, bucket: str, objects: dict[str, Object] | None = None) -> None:
        """Makes a bucket, empty or with the objects of another or of a moment."""
        self.buckets[bucket] = dict(objects or {})

    def deny(self, bucket: str, status: int, message: str, methods: tuple[str, ...] = ("GET", "POST", "PUT")) -> None:
        """Makes a bucket that answers every request of these methods with an error."""
        self.buckets[bucket], self.denied[bucket] = {}, (methods, status, message)

    def put(self, bucket: str, name: str, contents: bytes, *, query: dict | None = None, kind: str = "") -> dict:
        """Stores a new generation of an object, where the query's precondition allows it."""
        with self.lock:
            if bucket not in self.buckets:
                raise Refused(404, "The specified bucket does not exist.")
            self.check(bucket, name, query or {})
            made = Object(contents, next(self._generations), kind or "application/octet-stream", time.time())
            self.buckets[bucket][name] = made
            self._changed(bucket)
            return made.resource(bucket, name)

    def delete(self, bucket: str, name: str) -> None:
        """Removes an object; the caller holds the lock."""
        del self.buckets[bucket][name]
        self._changed(bucket)

    def _changed(self, bucket: str) -> None:
        if bucket in self.moments:
            self.moments[bucket].append(dict(self.buckets[bucket]))

    def check(self, bucket: str, name: str, query: dict) -> None:
        """Raises Refused where a precondition does not hold; an object that is not there has generation 0."""
        found = self.buckets[bucket].get(name)
        generation = str(found.generation) if found else "0"
        if query.get("ifGenerationMatch", generation) != generation:
            raise Refused(412, "At least one of the pre-conditions you specified did not hold.")
        if query.get("ifGenerationNotMatch") == generation:
            raise Refused(304, "")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Shows what went wrong here; a client that went away (it needs no answer any more) is nothing to show."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: ObjectStore

    def log_message(self, *arguments: object) -> None:
        """Says nothing."""

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        self.store.requests.append((self.command, self.path))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        weather = self.store.weather
        weather = weather(self.command, self.path) if callable(weather) else weather
        if weather == "reset":
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return
        if isinstance(weather, float):
            time.sleep(weather)
        try:
            if isinstance(weather, int):
                raise Refused(weather, "The weather is bad.")
            status, headers, answer = self._route(parts.path, query, body)
        except Refused as refused:
            status, message = refused.args
            error = {"code": status, "message": message, "errors": [{"message": message, "reason": "refused"}]}
            headers, answer = {}, b"" if status == 304 else {"error": error}
        if isinstance(answer, dict):
            headers["Content-Type"], answer = "application/json; charset=UTF-8", json.dumps(answer).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status not in (204, 304):  # which have no body and say nothing of one
            self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 (names that http.server asks for)

    def _route(self, path: str, query: dict, body: bytes) -> tuple[int, dict, dict | bytes]:
        found = re.fullmatch(r"(/upload|/download)?/storage/v1/b/([^/]+)(?:/o(?:/([^/]+)(/.*)?)?)?", path)
        if not found:
            raise Refused(404, "Not Found")
        prefix, bucket, name, _ = (part and unquote(part) for part in found.groups())
        if bucket not in self.store.buckets:
            raise Refused(404, "The specified bucket does not exist.")
        methods, *answer = self.store.denied.get(bucket, ((),))
        if self.command in methods:
            raise Refused(*answer)
        if prefix == "/upload":
            return self._upload(bucket, query, body)
        if name is None:
            whole = {"kind": "storage#bucket", "id": bucket, "name": bucket, "location": "LOCAL"}
            whole |= self.store.locations.get(bucket, {})
            return 200, {}, self._list(bucket, query) if path.endswith("/o") else whole
        with self.store.lock:
            known = self.store.buckets[bucket].get(name)
            if known is None or query.get("generation", str(known.generation)) != str(known.generation):
                raise Refused(404, f"No such object: {bucket}/{name}")
            if self.command != "POST":  # whose precondition is about the copy
                self.store.check(bucket, name, query)
            if self.command == "DELETE":
                self.store.delete(bucket, name)
                return 204, {}, b""
        if self.command == "POST":
            return self._copy(known, found[4], query)
        if prefix != "/download" and query.get("alt") != "media":
            return 200, {}, known.resource(bucket, name)
        if self.store.busy.get(name):
            self.store.busy[name] -= 1
            raise Refused(503, "The service is busy.")
        return self._media(name, known)

    def _media(self, name: str, known: Object) -> tuple[int, dict, bytes]:
        crc = base64.b64encode(google_crc32c.value(known.contents).to_bytes(4, "big")).decode()
        headers = {
            "Content-Type": known.content_type,
            "x-goog-generation": str(known.generation),
            "x-goog-hash": f"crc32c={crc}",
        }
        size = len(known.contents)
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
        if not asked:
            return 200, headers, known.contents
        first, last = asked.groups()
        start = int(first) if first else max(size - int(last), 0)
        stop = min(int(last) + 1, size) if first and last else size
        if start >= size or start >= stop:
            raise Refused(416, "Requested range not satisfiable")
        self.store.ranges.append((name, start, stop - 1))
        return 206, headers | {"Content-Range": f"bytes {start}-{stop - 1}/{size}"}, known.contents[start:stop]

    def _list(self, bucket: str, query: dict) -> dict:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        limit = int(query.get("maxResults", 1000))
        with self.store.lock:
            objects = dict(self.store.buckets[bucket])
        begin, end = max(query.get("startOffset", ""), query.get("pageToken", "")), query.get("endOffset")
        items, prefixes, following = [], [], None
        for name in sorted(name for name in objects if name.startswith(prefix) and name >= begin):
            if end and name >= end:
                break
            rest = name[len(prefix) :]
            folder = prefix + rest.partition(delimiter)[0] + delimiter if delimiter and delimiter in rest else None
            if folder in prefixes:
                continue
            if len(items) + len(prefixes) == limit:
                following = name
                break
            if folder:
                prefixes.append(folder)
            else:
                items.append(objects[name].resource(bucket, name))
        page = {"nextPageToken": following} if following else {}
        return {"kind": "storage#objects", "items": items, "prefixes": prefixes} | page

    def _upload(self, bucket: str, query: dict, body: bytes) -> tuple[int, dict, dict | bytes]:
        if "upload_id" in query:
            return self._resume(query["upload_id"], body)
        kind = self.headers.get("Content-Type", "")
        if query.get("uploadType") == "media":
            return 200, {}, self.store.put(bucket, query["name"], body, query=query, kind=kind)
        if query.get("uploadType") == "multipart":
            mark = re.search(r'boundary="?([^";]+)', kind)[1].encode()
            end = b"\r\n" if body.startswith(b"--" + mark + b"\r\n") else b"\n"  # of a line: clients differ
            described, media = body.removeprefix(b"--" + mark + end).split(end + b"--" + mark + end, 1)
            head, contents = media[: media.rindex(end + b"--" + mark)].split(end + end, 1)
            kind = (re.search(rb"(?i)content-type: *([^\r\n]+)", head) or [b"", b""])[1].decode()
            name = json.loads(described.split(end + end, 1)[1])["name"]
            return 200, {}, self.store.put(bucket, name, contents, query=query, kind=kind)
        name = query.get("name") or json.loads(body)["name"]
        self.store.check(bucket, name, query)
        identity = uuid.uuid4().hex
        self.store.uploads[identity] = (bucket, name, query, bytearray())
        location = f"{self.store.url}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={identity}"
        return 200, {"Location": location}, b""

    def _resume(self, identity: str, body: bytes) -> tuple[int, dict, dict | bytes]:
        if self.command == "DELETE":
            self.store.uploads.pop(identity, None)
            raise Refused(499, "Upload cancelled")
        if identity not in self.store.uploads:
            raise Refused(404, "No such upload")
        bucket, name, query, received = self.store.uploads[identity]
        part = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", self.headers.get("Content-Range") or "bytes 0-0/*")
        if part[1] is not None and int(part[1]) != len(received):
            raise Refused(400, f"Expected a part from byte {len(received)}, found one from {part[1]}")
        received += body
        if (part[2] != "*" and len(received) == int(part[2])) or not self.headers.get("Content-Range"):
            del self.store.uploads[identity]
            resource = self.store.put(bucket, name, bytes(received), query=query)
            return 200, {"Range": f"bytes=0-{max(len(received) - 1, 0)}"}, resource
        if len(received) % (256 * 1024):  # all parts but the last
            raise Refused(400, f"Expected parts of a multiple of 256 KiB, found {len(received)} bytes")
        return 308, {"Range": f"bytes=0-{len(received) - 1}"} if received else {}, b""

    def _copy(self, known: Object, action: str | None, query: dict) -> tuple[int, dict, dict]:
        target = re.fullmatch(r"/rewriteTo/b/([^/]+)/o/([^/]+)", action or "")
        if not target:
            raise Refused(404, "Not Found")
        to, copy = map(unquote, target.groups())
        resource = self.store.put(to, copy, known.contents, query=query, kind=known.content_type)
        return 200, {}, {"kind": "storage#rewriteResponse", "done": True, "resource": resource}
