"""Listens to the topic news through TLS, and prints what comes until the first message is there."""
import socket
import ssl
import sys

address, authority, version = sys.argv[1:]
host, port = address.rsplit(":", 1)
context = ssl.create_default_context(cafile=authority)
context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
with socket.create_connection((host, int(port)), timeout=60) as plain:
    with context.wrap_socket(plain, server_hostname="localhost") as stream:
        assert stream.version() == version.replace("_", "."), stream.version()
        # A record a byte.
        for byte in b"GET /sse?topic=news HTTP/1.1\r\nHost: localhost\r\n\r\n":
            stream.send(bytes([byte]))
        text = b""
        while b"hello" not in text:
            data = stream.recv(4096)
            assert data, text
            text += data
        print(text.decode())
