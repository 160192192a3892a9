#!/usr/bin/env python3
"""A back end that replies to clients' messages below requests/, with the standard library alone: it
replies with prices, takes orders, and notifies the shop of them."""

import base64
import hashlib
import hmac
import json
import os
import time
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

# webhook.signing_key. A key with the prefix whsec_ has its bytes in base64 after it.
KEY = os.environ.get("SIGNING_KEY", "a key for examples, which others know")
PORT = int(os.environ.get("PORT", "9000"))
BODY_BYTES_MAX = 16 << 20
# The number of remembered ids: a message may come again.
SEEN_MAX = 100_000
PRICES = {"tea": 3, "cake": 4}

seen, lock = OrderedDict(), Lock()


def is_signed(headers, body, now):
    """Whether Throng has sent this body, within five minutes."""
    try:
        sent = int(headers["webhook-timestamp"])
    except (KeyError, TypeError, ValueError):
        return False
    if abs(now - sent) > 300:
        return False
    key = base64.b64decode(KEY[6:]) if KEY.startswith("whsec_") else KEY.encode()
    signed = f"{headers['webhook-id']}.{sent}.".encode() + body
    want = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    # There may be several, with spaces between them.
    given = (headers["webhook-signature"] or "").split(" ")
    return any(hmac.compare_digest(want.encode(), one.encode()) for one in given)


def handle(message):
    """Returns the messages to publish for a message: the reply, and an order for the shop."""
    # Messages of MQTT clients are text; messages by WebSocket may be JSON.
    item = message["data"] if isinstance(message["data"], str) else None
    price = PRICES.get(item)
    if price is None:
        return [{"reply_to": message["id"], "data": {"error": "there is tea and cake"}}]
    if message["topic"] == "requests/price":
        return [{"reply_to": message["id"], "data": {"item": item, "price": price}}]
    # An order: the client gets a confirmation, and the shop gets the order.
    order = {"item": item, "from": message["user"], "client": message.get("client")}
    return [
        {"reply_to": message["id"], "data": {"ordered": item, "price": price}},
        {"topic": "orders", "data": order, "mqtt": {"qos": 1}},
    ]


def handle_once(message):
    """Handles each message once: a repeated message gets the same messages to publish."""
    with lock:
        if message["id"] not in seen:
            seen[message["id"]] = handle(message)
            if len(seen) > SEEN_MAX:
                seen.popitem(last=False)
        return seen[message["id"]]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        if length > BODY_BYTES_MAX:
            self.close_connection = True
            return self.respond(413, {"error": "too large"})
        body = self.rfile.read(length)
        if not is_signed(self.headers, body, time.time()):
            return self.respond(401, {"error": "the signature is wrong"})
        messages = json.loads(body)["messages"]
        self.respond(200, {"messages": [one for it in messages for one in handle_once(it)]})

    def respond(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
    print(f"http://127.0.0.1:{server.server_port}/requests", flush=True)
    server.serve_forever()
