"""The client of Eclipse in Python: what it does with a broker, with Throng. Arguments: host, port, path of WebSocket."""

import queue
import sys

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

HOST, PORT, PATH = sys.argv[1], int(sys.argv[2]), sys.argv[3]
# A step of a conversation fails after this many seconds.
TIMEOUT = 60
API = mqtt.CallbackAPIVersion.VERSION2


class Client:
    def __init__(self, name, version, transport="tcp", kept=False, will=None, expiry=0):
        self.messages, self.events = queue.Queue(), queue.Queue()
        options = {} if version == mqtt.MQTTv5 else {"clean_session": not kept}
        self.client = mqtt.Client(API, client_id=name, protocol=version, transport=transport, **options)
        if transport == "websockets":
            self.client.ws_set_options(path=PATH)
        self.client.username_pw_set("alice", "any")
        if will:
            self.client.will_set(*will, qos=1)
        self.client.on_message = lambda _, __, message: self.messages.put(message)
        self.client.on_connect = lambda _, __, flags, reason, ___: self.events.put((flags, reason))
        self.client.on_subscribe = lambda _, __, ___, reasons, ____: self.events.put(reasons)
        self.client.connect_timeout = TIMEOUT
        connect = {}
        if version == mqtt.MQTTv5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = expiry
            connect = {"clean_start": not kept, "properties": properties}
        self.client.connect(HOST, PORT, 60, **connect)
        self.client.loop_start()
        flags, reason = self.events.get(timeout=TIMEOUT)
        assert not reason.is_failure, reason
        self.session_present = flags.session_present

    def subscribe(self, topic, qos):
        self.client.subscribe(topic, qos)
        reasons = self.events.get(timeout=TIMEOUT)
        assert [reason.value for reason in reasons] == [qos], reasons

    def publish(self, topic, payload, qos, retain=False, properties=None):
        published = self.client.publish(topic, payload, qos, retain, properties)
        published.wait_for_publish(TIMEOUT)
        assert published.is_published(), topic

    def message(self):
        return self.messages.get(timeout=TIMEOUT)

    def quiet(self):
        # All earlier messages arrive before this one.
        self.publish("room/last", "last", 1)
        assert self.message().payload == b"last"

    def end(self):
        self.client.disconnect()
        self.client.loop_stop()


def conversation(version, transport):
    name = f"paho-{version}-{transport}"
    one = Client(name, version, transport)
    one.subscribe("room/+", 2)
    for qos in (0, 1, 2):
        one.publish("room/a", f"qos {qos}", qos)
        message = one.message()
        assert (message.topic, message.payload, message.qos) == ("room/a", f"qos {qos}".encode(), qos)
    one.publish("state/x", "kept", 1, retain=True)
    one.subscribe("state/#", 1)
    message = one.message()
    assert (message.payload, message.retain) == (b"kept", True)
    one.publish("state/x", b"", 1, retain=True)
    one.message()
    # A session that outlives its connection.
    two = Client(name + "-kept", version, transport, kept=True, expiry=100)
    assert not two.session_present
    # Each conversation has its own topic, since sessions of other conversations retain messages of their topics.
    two.subscribe(f"away/{name}/#", 1)
    two.end()
    for at in range(20):
        one.publish(f"away/{name}/a", str(at), 1)
    two = Client(name + "-kept", version, transport, kept=True, expiry=100)
    assert two.session_present
    away = [two.message() for _ in range(20)]
    came = [(message.payload, message.dup) for message in away]
    assert [payload for payload, _ in came] == [str(at).encode() for at in range(20)], came
    two.end()
    # A will.
    one.subscribe("gone", 1)
    three = Client(name + "-will", version, transport, will=("gone", "three"))
    three.client.loop_stop()
    three.client.socket().close()
    assert one.message().payload == b"three"
    if version == mqtt.MQTTv5:
        properties = Properties(PacketTypes.PUBLISH)
        properties.UserProperty = [("a", "1"), ("b", "2")]
        properties.ContentType = "text/plain"
        properties.ResponseTopic = "answers/1"
        properties.CorrelationData = b"\x01"
        one.publish("room/b", "said", 1, properties=properties)
        got = one.message().properties
        assert (got.UserProperty, got.ContentType) == ([("a", "1"), ("b", "2")], "text/plain")
        assert (got.ResponseTopic, got.CorrelationData) == ("answers/1", b"\x01")
    one.quiet()
    one.end()


for version in (mqtt.MQTTv31, mqtt.MQTTv311, mqtt.MQTTv5):
    for transport in ("tcp", "websockets"):
        conversation(version, transport)
        print("ok", version, transport)
