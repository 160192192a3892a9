#!/usr/bin/env python3
"""A back end for Throng, with the standard library alone: it names the users of connections, admits
users to documents, moderates chats, takes orders, and tracks who is online."""

import base64
import hashlib
import hmac
import json
import os
import time
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# webhook.signing_key. A key with the prefix whsec_ has its bytes in base64 after it.
KEY = os.environ.get("SIGNING_KEY", "a key for examples, which others know")
PORT = int(os.environ.get("PORT", "9000"))
BODY_BYTES_MAX = 1 << 20
SESSIONS = {"session-of-alice": "alice", "session-of-bob": "bob", "session-of-eve": "eve"}
SESSION_SECONDS = int(os.environ.get("SESSION_SECONDS", "3600"))
MEMBERS = {"doc:7": {"alice", "bob"}}
PRICES = {"tea": 3, "cake": 4}


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


def ok(**more):
    return {"status": "ok", **more}


def error(code, message):
    return {"status": "error", "response": {"code": code, "message": message}}


def session_user(event):
    """Returns the user of a connection's session: from a cookie, or, to try it, from the URL."""
    try:
        cookie = SimpleCookie(event["headers"].get("cookie", "")).get("session")
    except CookieError:
        cookie = None
    session = cookie.value if cookie else event["query"].get("session", [""])[0]
    return SESSIONS.get(session)


def decide(event):
    """Returns the reply to an event that requests a decision."""
    topic, user, payload = event.get("topic"), event["user"], event.get("payload")
    if event["kind"] == "connect":
        user = session_user(event)
        if user is None:
            return error("unauthorized", "sign in first")
        return ok(user=user, info={"name": user.title()}, expires=SESSION_SECONDS)
    if event["kind"] == "refresh":
        if user in SESSIONS.values():
            return ok(expires=SESSION_SECONDS)
        return error("signed_out", "the session is over")
    if event["kind"] == "subscribe":
        if user in MEMBERS.get(topic, ()):
            return ok(meta={"name": user.title()})
        return error("members_only", "ask the owner of the document")
    if event["kind"] == "publish":
        text = payload if isinstance(payload, str) else ""
        if "spam" in text:
            return error("no_spam", "this is no place for advertising")
        return ok(payload=text.replace("damn", "d***")) if "damn" in text else ok()
    if event["kind"] == "message":
        price = PRICES.get(payload.get("item")) if isinstance(payload, dict) else None
        if price is None:
            return error("unknown_item", "there is tea and cake")
        return ok(response={"ordered": payload["item"], "price": price})
    return error("unknown", "this back end does not know what that is")


class Online:
    """Has the connected users, by Throng's events, which come at least once, with ascending ids."""

    def __init__(self):
        self.last_id, self.connections, self.topics = 0, {}, set()

    def on_event(self, event):
        if int(event["id"]) <= self.last_id:
            return
        self.last_id = int(event["id"])
        kind = event["kind"]
        if kind == "started":
            # The node has started: earlier connections are gone.
            self.connections.clear()
            self.topics.clear()
        elif kind == "connected":
            self.connections[event["connection"]] = event["user"]
        elif kind == "disconnected":
            self.connections.pop(event["connection"], None)
        elif kind == "occupied":
            self.topics.add(event["topic"])
        elif kind == "vacated":
            self.topics.discard(event["topic"])

    def shown(self):
        users = sorted({user for user in self.connections.values() if user})
        return {"users": users, "topics": sorted(self.topics)}


ONLINE = Online()
# Kinds of events that need no decision.
NOTIFICATIONS = {"started", "connected", "disconnected", "joined", "left", "occupied", "vacated"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        length = int(self.headers.get("content-length") or 0)
        if length > BODY_BYTES_MAX:
            self.close_connection = True
            return self.respond(413, {})
        body = self.rfile.read(length)
        if not is_signed(self.headers, body, time.time()):
            return self.respond(401, {"error": "the signature is wrong"})
        events = json.loads(body)["events"]
        # Events that request a decision need one reply each, in order. Others need none.
        for event in events:
            if event["kind"] in NOTIFICATIONS:
                ONLINE.on_event(event)
        replies = [ok() if e["kind"] in NOTIFICATIONS else decide(e) for e in events]
        self.respond(200, {"replies": replies})

    def do_GET(self):
        self.respond(200, ONLINE.shown())

    def respond(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
    print(f"http://127.0.0.1:{server.server_port}/throng", flush=True)
    server.serve_forever()
