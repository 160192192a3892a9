// Joins, events and messages of one set of topics, over WebSocket.
"use strict";

const {
  assert, KINDS, POLLED, LATEST, OK, until, connect, sendHeartbeats, tryJoin, join, push, leave, refused, bytes,
  listen, listenWs, json, api, publish, each, server, run,
} = require("./lib.cjs");

const isBytes = (value, ...of) => {
  assert.ok(value instanceof ArrayBuffer, `bytes, not ${JSON.stringify(value)}`);
  assert.deepEqual([...new Uint8Array(value)], of);
};

// Makes a request and waits for its reply. By then all messages that were sent to the connection before have arrived.
const drain = async (channel) => assert.deepEqual(await push(channel, "drain", {}), OK);

run({
  join_push_and_leave: () =>
    each(KINDS, async (kind) => {
      const topic = `plain:${kind.name}`;
      const [one, two] = [connect(kind, { user: "alice" }), connect(kind)];
      const [a, b] = [await join(one, topic, { any: "thing" }), await join(two, topic)];
      const other = await join(one, `plain:other-${kind.name}`);
      assert.deepEqual(a.reply, OK);
      assert.deepEqual(await push(a, "say", { hi: 1, deep: ["é", null] }), OK);
      for (const channel of [a, b]) {
        const said = { hi: 1, deep: ["é", null], phx_sender: "alice" };
        assert.deepEqual(await channel.inbox.next("say"), said);
      }
      let closed = 0;
      a.onClose(() => (closed += 1));
      const received = [];
      one.onMessage((message) => received.push(message));
      assert.deepEqual(await leave(a), OK);
      await until("the channel is closed", () => closed === 1 && a.state === "closed");
      assert.deepEqual(await push(b, "say", { gone: 1 }), OK);
      assert.deepEqual(await b.inbox.next("say"), { gone: 1 });
      await drain(other);
      const late = received.filter((message) => message.topic === topic && message.event === "say");
      assert.deepEqual(late, [], "who has left receives nothing");
      // The same topic again, on the same connection.
      const again = await join(one, topic);
      assert.deepEqual(await push(again, "say", { back: 1 }), OK);
      assert.deepEqual(await again.inbox.next("say"), { back: 1, phx_sender: "alice" });
    }),

  // The server names the sender of a message, and no client can forge it.
  who_sent_it: () =>
    each(KINDS, async (kind) => {
      const topic = `plain:sender-${kind.name}`;
      const zoe = 'zo"ë';
      const [a, b] = [await join(connect(kind, { user: zoe }), topic), await join(connect(kind), topic)];
      const all = [a, b];
      for (const polled of POLLED.filter(({ phoenix }) => phoenix === kind.phoenix)) {
        all.push(await join(connect(polled, { user: "polled", transport: "longpoll" }), topic));
      }
      const ws = await listenWs(`topic=${topic}&user=bob`);
      const says = async (event, payload, sender) => {
        for (const channel of all) assert.deepEqual(await channel.inbox.next(event), payload);
        const { sender: said } = await ws.next(event);
        assert.equal(said, sender);
      };
      const forged = { text: "hi", phx_sender: "mallory", deep: { phx_sender: "kept" } };
      const honest = { text: "hi", deep: { phx_sender: "kept" } };
      assert.deepEqual(await push(a, "one", forged), OK);
      await says("one", { ...honest, phx_sender: zoe }, zoe);
      assert.deepEqual(await push(b, "two", forged), OK);
      await says("two", honest, undefined);
      for (const polled of all.slice(2)) {
        assert.deepEqual(await push(polled, "three", forged), OK);
        await says("three", { ...honest, phx_sender: "polled" }, "polled");
      }
      ws.send({ type: "publish", id: 1, topic, event: "four", data: forged });
      await says("four", { ...honest, phx_sender: "bob" }, "bob");
      ws.send({ type: "publish", id: 2, topic, event: "five", data: "text" });
      await says("five", { data: "text", phx_sender: "bob" }, "bob");
      await publish(topic, forged, { event: "six" });
      await says("six", honest, undefined);
      await publish(topic, [1], { event: "seven", sender: "carol" });
      await says("seven", { data: [1], phx_sender: "carol" }, "carol");
      // In this spelling only a JSON parser sees the name.
      const raw = '{"\\u0070hx\\u005fsender":"mallory","a":"\\u00e9"}';
      const headers = { "Content-Type": "application/json" };
      const url = `http://${server.client}/publish?topic=${topic}&event=eight&user=dave`;
      assert.equal((await json(url, { method: "POST", headers, body: raw })).status, 200);
      await says("eight", { a: "é", phx_sender: "dave" }, "dave");
    }),

  what_rules_refuse: () =>
    each(KINDS, async (kind) => {
      const socket = connect(kind, { rejoinAfterMs: () => 1e6 });
      const no = await tryJoin(socket, `refused:${kind.name}`);
      assert.deepEqual(no.reply, refused("unauthorized"));
      const quiet = await join(socket, `quiet:${kind.name}`);
      const mute = refused("clients may not send to this topic");
      assert.deepEqual(await push(quiet, "say", {}), mute);
      const [a, b] = [
        await join(socket, `others:${kind.name}`),
        await join(connect(kind), `others:${kind.name}`),
      ];
      const plain = await join(socket, `plain:rules-${kind.name}`);
      assert.deepEqual(await push(a, "say", { hi: 2 }), OK);
      assert.deepEqual(await b.inbox.next("say"), { hi: 2 });
      await drain(plain);
      assert.deepEqual(a.inbox.all("say"), [], "all but the sender");
      for (const event of ["phx_x", "presence_diff", "presence_x", "presence_update"]) {
        const reply = await push(plain, event, { a: 1 });
        assert.equal(reply.status, "error", event);
        assert.match(reply.response.reason, /can't be published, because names that begin with (phx|presence)_ are reserved/);
      }
      const long = await push(plain, "say", { long: "x".repeat(1500) });
      assert.match(long.response.reason, /at most 1024 bytes/);
      await drain(plain);
      assert.deepEqual(plain.inbox.all("say"), []);
    }),

  too_many_topics: () =>
    each(KINDS, async (kind) => {
      const socket = connect(kind, { user: `many-${kind.name}`, rejoinAfterMs: () => 1e6 });
      const joined = [];
      for (let at = 0; at < 4; at += 1) joined.push(await join(socket, `plain:${at}`));
      const more = await tryJoin(socket, "plain:4");
      assert.deepEqual(more.reply, refused("too many channels joined"));
      assert.deepEqual(await leave(joined[0]), OK);
      await join(socket, "plain:5");
    }),

  messages_from_everywhere: () =>
    each(KINDS, async (kind) => {
      const topic = `plain:all-${kind.name}`;
      const a = await join(connect(kind), topic);
      const sse = await listen(`/sse?topic=${topic}`);
      const stream = await listen(`/stream?topic=${topic}`);
      const ws = await listenWs(`topic=${topic}`);
      const api = [
        [{ a: { b: [1] } }, { event: "tick" }, "tick", { a: { b: [1] } }],
        ["two\nlines", {}, "message", { data: "two\nlines" }],
        [7, {}, "message", { data: 7 }],
        [[1, null], {}, "message", { data: [1, null] }],
        [null, {}, "message", { data: null }],
        [" { not JSON", { event: "é" }, "é", { data: " { not JSON" }],
      ];
      for (const [data, more, event, payload] of api) {
        await publish(topic, data, more);
        assert.deepEqual(await a.inbox.next(event), payload);
      }
      assert.deepEqual(JSON.parse(await sse.next("tick")), { a: { b: [1] } });
      assert.equal(await sse.next("message"), "two\nlines");
      assert.deepEqual((await stream.next("tick")).data, { a: { b: [1] } });
      assert.deepEqual((await ws.next("tick")).data, { a: { b: [1] } });

      ws.send({ type: "publish", id: 1, topic, event: "by-ws", data: { from: "ws" } });
      assert.deepEqual(await a.inbox.next("by-ws"), { from: "ws" });
      const url = `http://${server.client}/publish?topic=${topic}&event=by-http`;
      assert.equal((await json(url, { method: "POST", body: "text" })).status, 200);
      assert.deepEqual(await a.inbox.next("by-http"), { data: "text" });

      for (const inbox of [sse, stream, ws]) inbox.events.length = 0;
      assert.deepEqual(await push(a, "by-phoenix", { hi: "é" }), OK);
      assert.deepEqual(await push(a, "message", { hi: 2 }), OK);
      assert.deepEqual(JSON.parse(await sse.next("by-phoenix")), { hi: "é" });
      assert.deepEqual(JSON.parse(await sse.next("message")), { hi: 2 });
      const line = await stream.next("by-phoenix");
      assert.deepEqual([line.topic, line.data], [topic, { hi: "é" }]);
      assert.deepEqual((await ws.next("by-phoenix")).data, { hi: "é" });
    }),

  // The server sends a user's messages and broadcasts even to a client that has not joined these topics.
  messages_to_users_and_to_all: () =>
    each([KINDS[0], KINDS[3]], async (kind) => {
      const a = await join(connect(kind, { user: kind.name }), `plain:user-${kind.name}`);
      const received = new (require("./lib.cjs").Inbox)();
      a.socket.onMessage(({ event, payload }) => received.receive(event, payload));
      await api("send", { user: kind.name, event: "mail", data: { to: kind.name } });
      assert.deepEqual(await received.next("mail"), { to: kind.name });
      await api("broadcast", { event: `news-${kind.name}`, data: "all" });
      assert.deepEqual(await received.next(`news-${kind.name}`), { data: "all" });
    }),

  binary_both_ways: async () => {
    const topic = "plain:binary";
    const [a, b] = [await join(connect(LATEST), topic), await join(connect(LATEST), topic)];
    const v1 = await join(connect(KINDS[1]), topic);
    const old1 = await join(connect(KINDS[3]), topic);
    const sse = await listen(`/sse?topic=${topic}`);
    const ws = await listenWs(`topic=${topic}`);
    assert.deepEqual(await push(a, "bin", bytes(1, 2, 255)), OK);
    await publish(topic, "AAH/", { event: "api", encoding: "base64" });
    for (const channel of [a, b]) {
      isBytes(await channel.inbox.next("bin"), 1, 2, 255);
      isBytes(await channel.inbox.next("api"), 0, 1, 255);
    }
    for (const channel of [v1, old1]) {
      assert.deepEqual(await channel.inbox.next("bin"), { data: "AQL/", encoding: "base64" });
      assert.deepEqual(await channel.inbox.next("api"), { data: "AAH/", encoding: "base64" });
    }
    assert.equal(await sse.next("bin"), "AQL/");
    assert.equal(await sse.next("api"), "AAH/");
    assert.deepEqual([...(await ws.next("binary"))].slice(-3), [1, 2, 255]);
    // An empty payload is valid.
    assert.deepEqual(await push(a, "bin", bytes()), OK);
    isBytes(await b.inbox.next("bin"));
  },

  heartbeats_get_replies: () =>
    each(KINDS, async (kind) => {
      const socket = connect(kind, { heartbeatIntervalMs: 1e6 });
      sendHeartbeats(socket, 300);
      const channel = await join(socket, `plain:beat-${kind.name}`);
      let beats = 0;
      socket.onMessage(({ topic }) => (beats += topic === "phoenix"));
      // A client without heartbeats shows when the server closes silent clients.
      const silent = connect(kind, { heartbeatIntervalMs: 1e6, reconnectAfterMs: () => 1e6 });
      await until("the silent client is closed", () => silent.closes.length === 1);
      assert.ok(beats >= 1, `${beats} replies`);
      assert.deepEqual(socket.closes, []);
      assert.equal(channel.joins, 1);
      assert.deepEqual(await push(channel, "say", {}), OK);
    }),
});
