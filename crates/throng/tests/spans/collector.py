"""A collector of spans: takes OTLP by HTTP/1.1 on the listening socket that is its input, decodes it with the messages of
the package opentelemetry-proto, and prints a line of JSON for each span.

With arguments, the files of a certificate and its key, it takes HTTPS alone.
"""

import json
import socket
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

output = threading.Lock()


def attributes(pairs):
    """Attributes as an object of their values."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def spans(request):
    for of_resource in request.resource_spans:
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield {
                    "resource": attributes(of_resource.resource.attributes),
                    "scope": of_scope.scope.name,
                    "trace": span.trace_id.hex(),
                    "id": span.span_id.hex(),
                    "parent": span.parent_span_id.hex(),
                    "flags": span.flags,
                    "name": span.name,
                    "kind": Span.SpanKind.Name(span.kind),
                    "start": span.start_time_unix_nano,
                    "end": span.end_time_unix_nano,
                    "status": Status.StatusCode.Name(span.status.code),
                    "message": span.status.message,
                    "attributes": attributes(span.attributes),
                }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        assert self.path == "/v1/traces", self.path
        assert self.headers["content-type"] == "application/x-protobuf", self.headers
        for span in spans(ExportTraceServiceRequest.FromString(body)):
            with output:
                print(json.dumps(span), flush=True)
        response = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(response)))
        self.end_headers()
        self.wfile.write(response)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
server.socket.close()
server.socket = socket.socket(fileno=0)
if sys.argv[1:]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*sys.argv[1:])
    server.socket = context.wrap_socket(server.socket, server_side=True)
server.daemon_threads = True
server.serve_forever()
