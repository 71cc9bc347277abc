"""Cloud TPU on this machine: a gRPC server that answers the part of google.cloud.tpu.v2 that submission asks of it.

    with CloudTpu() as service:
        monkeypatch.setenv("TPU_API_ENDPOINT", service.address)

Requests and answers are the published messages, read and written by google-cloud-tpu's own types; the client is the
real one. Time is counted in questions: each GetQueuedResource moves a resource one state further along `lives`.
"""

import json
import re
import threading
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from google.cloud.tpu_v2 import types
from google.longrunning import operations_pb2
from google.protobuf import any_pb2, empty_pb2
from google.rpc import status_pb2

LIFE = ("ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE")
INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND


class Refused(Exception):
    """A call that ends with an error: `Refused(code, message)`."""


class CloudTpu:
    """The server; it listens between `__enter__` and `__exit__`.

    lives: for each resource that is created, in turn, the states it goes through; the last one stays. A state is a
        QueuedResourceState.State's name, or for a node NODE:STATE while the resource is ACTIVE. FAILED:MESSAGE is a
        lack of capacity, FAILED:CODE:MESSAGE has another code of google.rpc.
    refusals: method -> (code, message) for its next calls, each used once.
    requests: every request, in order, by method.
    zones: that there are.
    slow: questions for which an operation is not done.
    late_error: what the next creation fails with, once its operation is asked for.
    posted: bodies of creations over HTTP.
    """

    def __init__(self) -> None:
        self.zones = ("us-west4-a", "us-east1-d")
        self.lives: list[tuple[str, ...]] = []
        self.refusals: dict[str, list[tuple[grpc.StatusCode, str]]] = {}
        self.requests: list[tuple[str, object]] = []
        self.resources: dict[str, types.QueuedResource] = {}
        self.nodes: dict[str, types.Node] = {}
        self.operations: dict[str, operations_pb2.Operation] = {}
        self.slow = 0
        self.late_error: status_pb2.Status | None = None
        self.posted: list[dict] = []
        self._rest: ThreadingHTTPServer | None = None
        self._ahead: dict[str, list[str]] = {}
        self._seen: set[str] = set()

    def __enter__(self) -> "CloudTpu":
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        methods = {
            "CreateQueuedResource": ("_create", types.CreateQueuedResourceRequest),
            "GetQueuedResource": ("_get", types.GetQueuedResourceRequest),
            "DeleteQueuedResource": ("_delete", types.DeleteQueuedResourceRequest),
            "GetNode": ("_get_node", types.GetNodeRequest),
        }
        handlers = {name: self._handler(name, *method) for name, method in methods.items()}
        operation = grpc.unary_unary_rpc_method_handler(
            self._operation, operations_pb2.GetOperationRequest.FromString, operations_pb2.Operation.SerializeToString
        )
        services = {"google.cloud.tpu.v2.Tpu": handlers, "google.longrunning.Operations": {"GetOperation": operation}}
        for name, answers in services.items():
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, answers),))
        self._server.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.stop(None).wait()
        if self._rest is not None:
            self._rest.shutdown()
            self._rest.server_close()

    def rest(self) -> str:
        """Begin to answer v2alpha1 over HTTP as well, and return the address."""
        self._rest = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Rest,), {"cloud": self}))
        threading.Thread(target=self._rest.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return f"http://127.0.0.1:{self._rest.server_port}"

    def has_node(self, name: str, state: str = "READY", zone: str = "us-west4-a", **fields: object) -> None:
        """Have a node that exists by itself, without a queued resource."""
        full = f"projects/p/locations/{zone}/nodes/{name}"
        self.nodes[full] = types.Node(name=full, state=state, **fields)

    def called(self, method: str) -> list:
        """The requests of a method."""
        return [request for name, request in self.requests if name == method]

    def _handler(self, name, answer, request_type):
        def respond(request, context):
            self.requests.append((name, request))
            try:
                if self.refusals.get(name):
                    raise Refused(*self.refusals[name].pop(0))
                return getattr(self, answer)(request)
            except Refused as refused:
                context.abort(*refused.args)

        def serialize(message):
            own = hasattr(message, "SerializeToString")
            return message.SerializeToString() if own else type(message).serialize(message)

        return grpc.unary_unary_rpc_method_handler(respond, request_type.deserialize, serialize)

    def create_over_http(self, parent: str, identity: str, body: dict) -> None:
        """Create a resource of v2alpha1, whose tier and duration v2 does not have."""
        self.posted.append(json.loads(json.dumps(body)))
        if self.refusals.get("POST"):
            raise Refused(*self.refusals["POST"].pop(0))
        model, duration = body.pop("provisioningModel"), body.pop("runDuration")["maxRunDuration"]
        if model != "FLEX_START" or not re.fullmatch(r"\d+s", duration):
            raise Refused(INVALID, "a duration is needed")
        for specification in body["tpu"]["nodeSpec"]:
            if "multiNodeParams" in specification:
                specification["multisliceParams"] = specification.pop("multiNodeParams")
        resource = types.QueuedResource.from_json(json.dumps(body))
        self._create(
            types.CreateQueuedResourceRequest(parent=parent, queued_resource_id=identity, queued_resource=resource)
        )

    def _create(self, request) -> operations_pb2.Operation:
        place = re.fullmatch(r"projects/([^/]+)/locations/([^/]+)", request.parent)
        if not place or not re.match(r"^[A-Za-z0-9_.~+%-]+$", request.queued_resource_id):
            raise Refused(INVALID, f"Malformed name: '{request.parent}', '{request.queued_resource_id}'")
        if place[2] not in self.zones:
            raise Refused(NOT_FOUND, f"Location {place[2]} is not found or access is unauthorized.")
        name = f"{request.parent}/queuedResources/{request.queued_resource_id}"
        if request.request_id and request.request_id in self._seen:
            return self._done(types.QueuedResource.pb(self.resources[name]))
        if name in self.resources:
            raise Refused(grpc.StatusCode.ALREADY_EXISTS, f"Resource '{name}' already exists")
        (specification,) = request.queued_resource.tpu.node_spec
        count = specification.multislice_params.node_count
        if bool(specification.node_id) == bool(count) or count == 1:
            raise Refused(INVALID, "one of node_id and multislice_params (2 or more) is needed")
        node = specification.node
        if not node.runtime_version or specification.parent != request.parent:
            raise Refused(INVALID, "runtime_version and parent are required")
        if not re.fullmatch(r"(v2|v3|v4|v5litepod|v5p|v6e|tpu7x)-\d+", node.accelerator_type):
            raise Refused(INVALID, f"unknown accelerator type {node.accelerator_type}")
        self._seen.add(request.request_id)
        if self.late_error is not None:
            return self._operate(error=self.late_error)
        resource = types.QueuedResource(request.queued_resource)
        resource.name = name
        self.resources[name] = resource
        self._ahead[name] = list(self.lives.pop(0) if self.lives else LIFE)
        prefix = specification.multislice_params.node_id_prefix
        ids = [f"{prefix}-{index}" for index in range(count)] if count else [specification.node_id]
        for node_id in ids:
            self.nodes[f"{request.parent}/nodes/{node_id}"] = types.Node(node, queued_resource=name, state="READY")
        return self._done(types.QueuedResource.pb(resource))

    def _find(self, name: str) -> types.QueuedResource:
        if name not in self.resources:
            raise Refused(NOT_FOUND, f"Resource '{name}' was not found")
        return self.resources[name]

    def _get(self, request) -> types.QueuedResource:
        resource, ahead = self._find(request.name), self._ahead[request.name]
        state = ahead.pop(0) if len(ahead) > 1 else ahead[0]
        if state == "GONE":
            self._forget(request.name)
            return self._find(request.name)
        kind, _, detail = state.partition(":")
        own = [node for node in self.nodes.values() if node.queued_resource == request.name]
        for node in own:
            node.state = "READY"
        if kind == "NODE":
            kind, own[-1].state = "ACTIVE", detail
        resource.state = types.QueuedResourceState(state=kind)
        if kind == "FAILED":
            code, _, message = detail.rpartition(":")
            resource.state.failed_data.error = status_pb2.Status(code=int(code or 8), message=message)
        if kind in ("SUSPENDING", "SUSPENDED"):
            resource.state.state_initiator = detail or "SERVICE"
        return resource

    def _get_node(self, request) -> types.Node:
        if request.name not in self.nodes:
            raise Refused(NOT_FOUND, f"Resource '{request.name}' was not found")
        return self.nodes[request.name]

    def _delete(self, request) -> operations_pb2.Operation:
        resource = self._find(request.name)
        state = resource.state.state.name
        if state not in ("ACCEPTED", "FAILED", "SUSPENDED") and not request.force:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, f"a resource that is {state} is deleted by force only")
        self._ahead[request.name] = ["DELETING", "GONE"]
        return self._done(empty_pb2.Empty())

    def _forget(self, name: str) -> None:
        del self.resources[name]
        self.nodes = {key: node for key, node in self.nodes.items() if node.queued_resource != name}

    def _done(self, outcome: object) -> operations_pb2.Operation:
        packed = any_pb2.Any()
        packed.Pack(outcome)
        return self._operate(response=packed)

    def _operate(self, **outcome: object) -> operations_pb2.Operation:
        name = f"projects/p/locations/z/operations/{len(self.operations)}"
        self.operations[name] = operations_pb2.Operation(name=name, done=True, **outcome)
        return operations_pb2.Operation(name=name, done=False)

    def _operation(self, request, context) -> operations_pb2.Operation:
        if self.slow:
            self.slow -= 1
            return operations_pb2.Operation(name=request.name, done=False)
        return self.operations[request.name]


class _Rest(BaseHTTPRequestHandler):
    cloud: CloudTpu

    def log_message(self, *arguments: object) -> None:
        """Says nothing."""

    def do_POST(self) -> None:
        found = re.match(
            r"/v2alpha1/(projects/[^/]+/locations/[^/]+)/queuedResources\?queuedResourceId=([^&]+)", self.path
        )
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            self.cloud.create_over_http(found[1], found[2], body)
            self._answer(200, {"name": f"{found[1]}/operations/1", "done": False})
        except Refused as refused:
            code, message = refused.args
            self._answer(400, {"error": {"code": 400, "status": code.name, "message": message}})

    def do_GET(self) -> None:
        self._answer(200, {"name": self.path.removeprefix("/v2alpha1/"), "done": True, "response": {}})

    def _answer(self, status: int, body: dict) -> None:
        contents = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(contents)))
        self.end_headers()
        self.wfile.write(contents)
