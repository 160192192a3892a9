"""Breaks TLS in many ways after its handshake, by tlslite-ng, each on a connection of its own.

Prints a line for each: the version, the way, and the alert that the server sent; "closed" where it closed without one.
"""
import socket
import sys

from tlslite.api import HandshakeSettings, TLSConnection
from tlslite.errors import TLSAbruptCloseError, TLSClosedConnectionError, TLSRemoteAlert
from tlslite.constants import AlertDescription
from tlslite.messages import ClientHello, Message

# The server closes at the 33rd record in a row without data. With more records, unread input would make the kernel
# reset the connection and discard the alert.
WITHOUT_DATA = 33
ALERT, HANDSHAKE, DATA = 21, 22, 23
KEY_UPDATE = 24


class Wire:
    """A socket whose next record can be changed on its way."""

    def __init__(self, plain):
        self.plain = plain
        self.change = None

    def send(self, data):
        sent = len(data)
        if self.change:
            data, self.change = self.change(bytearray(data)), None
        self.plain.sendall(data)
        return sent

    def sendall(self, data):
        self.send(data)

    def __getattr__(self, name):
        return getattr(self.plain, name)


def connect(version):
    host, port = sys.argv[1].rsplit(":", 1)
    wire = Wire(socket.create_connection((host, int(port)), timeout=60))
    settings = HandshakeSettings()
    settings.minVersion = settings.maxVersion = version
    connection = TLSConnection(wire)
    connection.ignoreAbruptClose = False
    connection.handshakeClientCert(settings=settings, serverName="localhost", alpn=[b"http/1.1"])
    return connection, wire


def record(connection, kind, data):
    """Sends a record as it is, encrypted and not divided."""
    for _ in connection._recordLayer.sendRecord(Message(kind, bytearray(data))):
        pass


def changed(change):
    def break_it(connection, wire):
        wire.change = change
        record(connection, DATA, b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n")
    return break_it


def sent(kind, data, times=1):
    def break_it(connection, _):
        for _ in range(times):
            record(connection, kind, data)
    return break_it


def raw(data):
    return lambda _, wire: wire.plain.sendall(data)


def flipped(at):
    def change(data):
        data[at] ^= 1
        return data
    return change


def shortened(length):
    return lambda data: data[:3] + length.to_bytes(2, "big") + data[5:5 + length]


def key_updates(connection, _):
    """Sends valid key updates, and no data between them."""
    for _ in range(WITHOUT_DATA):
        for _ in connection.send_keyupdate_request(0):
            pass


def hello(connection, _):
    message = ClientHello().create((3, 3), bytearray(32), bytearray(0), [0x1301, 0xC02B])
    record(connection, HANDSHAKE, message.write())


BOTH = {
    "an unknown type of record": sent(99, b"?"),
    "a changed tag": changed(flipped(-1)),
    "a changed first byte": changed(flipped(5)),
    "a record of half a tag": changed(shortened(8)),
    "an empty record": raw(b"\x17\x03\x03\x00\x00"),
    "a record with a length above the limit": raw(b"\x17\x03\x03\xff\xff" + bytes(100)),
    "a record with too much in it": sent(DATA, bytes((1 << 14) + 1)),
    "plain data": raw(b"\x17\x03\x03\x00\x05hello"),
    "a plain handshake": raw(b"\x16\x03\x03\x00\x04\x00\x00\x00\x00"),
    "a plain alert": raw(b"\x15\x03\x03\x00\x02\x02\x28"),
    "records without data": sent(DATA, b"", WITHOUT_DATA),
    "another handshake": hello,
    "an empty handshake record": sent(HANDSHAKE, b""),
    "a message that was finished before": sent(HANDSHAKE, b"\x14\x00\x00\x0c" + bytes(12)),
    "half an alert": sent(ALERT, b"\x02"),
    "a fatal alert": sent(ALERT, b"\x02\x28"),
}
ONLY_1_3 = {
    "padding and nothing else": sent(0, bytes(20)),
    "a change of ciphers": raw(b"\x14\x03\x03\x00\x01\x01"),
    "key updates": key_updates,
    "a key update of an unknown kind": sent(HANDSHAKE, bytes([KEY_UPDATE, 0, 0, 1, 2])),
    "a key update of two bytes": sent(HANDSHAKE, bytes([KEY_UPDATE, 0, 0, 2, 0, 0])),
    "a key update with a message behind it": sent(HANDSHAKE, bytes([KEY_UPDATE, 0, 0, 1, 0] * 2)),
    "a handshake message between data": sent(HANDSHAKE, bytes([KEY_UPDATE, 0])),
}

for version, name in [((3, 4), "1.3"), ((3, 3), "1.2")]:
    ways = {**BOTH, **ONLY_1_3} if name == "1.3" else BOTH
    for way, break_it in ways.items():
        connection, wire = connect(version)
        try:
            break_it(connection, wire)
            # The rest of the message does not come, but data.
            if way == "a handshake message between data":
                record(connection, DATA, b"GET")
            connection.read(min=1, max=1)
            result = "nothing"
        except TLSRemoteAlert as alert:
            result = AlertDescription.toStr(alert.description)
        except (TLSAbruptCloseError, TLSClosedConnectionError, ConnectionError, BrokenPipeError):
            result = "closed"
        print(f"{name} {way}: {result}", flush=True)
