// The same by long poll, where sessions outlive requests, and a request may reach any shard.
"use strict";

const http = require("node:http");
const net = require("node:net");
const {
  PATIENCE_MS, assert, POLLED, LATEST, OK, sleep, until, connect, join, push, leave, bytes, json, api, metric, publish,
  members, presence, each, server, run,
} = require("./lib.cjs");

const polled = (kind, options) => connect(kind, { ...options, transport: "longpoll" });

// The transport without the client library, for requests that it never makes.
const get = (token, more = "") => {
  const query = token === undefined ? "" : `&token=${encodeURIComponent(token)}`;
  return json(`http://${server.client}/socket/longpoll?vsn=2.0.0${query}${more}`);
};
const post = (token, body, type = "application/json") =>
  json(`http://${server.client}/socket/longpoll?vsn=2.0.0`, {
    method: "POST",
    headers: { "Content-Type": type, "X-Phoenix-Longpoll-Token": token },
    body,
  });

async function open(more) {
  const { status, body } = await get(undefined, more);
  assert.deepEqual([status, body.status, body.messages], [200, 410, []]);
  return body.token;
}

// Polls until `count` messages have arrived.
async function messages(token, count) {
  const all = [];
  await until(`${count} messages came`, async () => {
    const { body } = await get(token);
    assert.ok([200, 204].includes(body.status), JSON.stringify(body));
    all.push(...body.messages);
    return all.length >= count;
  });
  return all;
}

// Sends many pushes at once: each gets a reply and is delivered, without another join.
async function burst(channel, length, payload) {
  const pushes = await Promise.all(Array.from(length, (_, at) => push(channel, "say", payload(at))));
  assert.ok(pushes.every(({ status }) => status === "ok"));
  await until("all came", () => channel.inbox.all("say").length === pushes.length);
  assert.deepEqual([channel.joins, channel.socket.closes], [1, []]);
}

// A proxy that lets a client only long poll. `upgrade` handles its WebSocket handshakes.
function proxy(upgrade) {
  const front = http.createServer((request, response) => {
    const { method, url, headers } = request;
    const [host, port] = server.client.split(":");
    const back = http.request({ host, port, method, path: url, headers }, (upstream) => {
      response.writeHead(upstream.statusCode, upstream.headers);
      upstream.pipe(response);
    });
    back.on("error", () => response.destroy());
    response.on("close", () => back.destroy());
    request.pipe(back);
  });
  front.on("upgrade", (request, socket) => {
    // The client may reset the connection.
    socket.on("error", () => {});
    upgrade(request, socket);
  });
  return new Promise((done) => front.listen(0, "127.0.0.1", () => done(front.address().port)));
}

run({
  join_push_and_leave: () =>
    each(POLLED, async (kind) => {
      const topic = `plain:${kind.name}`;
      const sockets = [polled(kind), polled(kind), polled(kind), connect(kind)];
      const [a, b, c, ws] = await Promise.all(sockets.map((socket) => join(socket, topic)));
      assert.deepEqual(a.reply, OK);
      assert.deepEqual(await push(a, "say", { from: "a" }), OK);
      assert.deepEqual(await push(ws, "say", { from: "é" }), OK);
      for (const channel of [a, b, c, ws]) {
        assert.deepEqual(await channel.inbox.next("say"), { from: "a" });
        assert.deepEqual(await channel.inbox.next("say"), { from: "é" });
      }
      // Newer clients send several messages in one request.
      const many = Array.from({ length: 60 }, (_, at) => push(b, "count", { at }));
      assert.ok((await Promise.all(many)).every(({ status }) => status === "ok"));
      await until("all came", () => a.inbox.all("count").length === 60);
      // Older clients send each message in a request of its own, and these overtake each other.
      const order = a.inbox.all("count").map(({ at }) => at);
      if (kind.phoenix === LATEST.phoenix) assert.deepEqual(order, [...order.keys()]);
      assert.equal(new Set(order).size, 60);
      await publish(topic, "text");
      assert.deepEqual(await c.inbox.next("message"), { data: "text" });
      let closed = 0;
      a.onClose(() => (closed += 1));
      assert.deepEqual(await leave(a), OK);
      await until("the channel is closed", () => closed === 1);
      await until("it has left", async () => (await members(topic)) === 3);
    }),

  // More messages at once than fit into an outbox: this client reads all the time.
  a_burst_of_small_messages: () =>
    each(POLLED, async (kind) => {
      const channel = await join(polled(kind), `plain:burst-${kind.name}`);
      await burst(channel, { length: 250 }, () => ({}));
    }),

  // Newer clients send up to 100 messages in a request, which may be larger than one message's limit.
  a_burst_of_large_messages: async () => {
    const channel = await join(polled(LATEST), "plain:large");
    await burst(channel, { length: 20 }, () => ({ text: "x".repeat(10_000) }));
  },

  binary: async () => {
    const topic = "plain:binary";
    const base64 = { data: "AQL/", encoding: "base64" };
    const [a, old] = [await join(polled(LATEST), topic), await join(polled(POLLED[1]), topic)];
    const ws = await join(connect(LATEST), topic);
    await publish(topic, "AQL/", { event: "api", encoding: "base64" });
    assert.deepEqual(await push(ws, "bin", bytes(1, 2, 255)), OK);
    assert.deepEqual(await push(a, "polled", bytes(1, 2, 255)), OK);
    for (const event of ["api", "bin", "polled"]) {
      for (const channel of [a, old]) {
        assert.deepEqual(await channel.inbox.next(event), base64);
      }
      assert.deepEqual(new Uint8Array(await ws.inbox.next(event)), Uint8Array.of(1, 2, 255));
    }
  },

  bare_requests: async () => {
    const token = await open();
    assert.notEqual(token, await open());
    const lines = ['["1","1","plain:a","phx_join",{}]', '["1","2","plain:a","say",{"a":1}]'];
    const text = await post(token, lines[0]);
    assert.deepEqual([text.status, text.body], [200, { status: 200 }]);
    const binary = Buffer.concat([Buffer.from([0, 1, 1, 7, 3]), Buffer.from("13plain:abin"), Buffer.of(9)]);
    const nd = await post(token, `${lines[1]}\n${binary.toString("base64")}`, "application/x-ndjson");
    assert.deepEqual(nd.body, { status: 200 });
    assert.deepEqual(await messages(token, 5), [
      '["1","1","plain:a","phx_reply",{"status":"ok","response":{}}]',
      '["1","2","plain:a","phx_reply",{"status":"ok","response":{}}]',
      '["1","3","plain:a","phx_reply",{"status":"ok","response":{}}]',
      '[null,null,"plain:a","say",{"a":1}]',
      '[null,null,"plain:a","bin",{"data":"CQ==","encoding":"base64"}]',
    ].sort((x, y) => x.includes("null,null") - y.includes("null,null")));

    // One poll ends without a message, and a message ends another one.
    const started = Date.now();
    assert.equal((await get(token)).body.status, 204);
    assert.ok(Date.now() - started >= 900, "it waited");
    const waiting = get(token);
    await sleep(100);
    await publish("plain:a", { b: 2 });
    assert.deepEqual((await waiting).body.messages, ['[null,null,"plain:a","message",{"b":2}]']);

    // Forged tokens: another session's signature, a changed name, nonsense.
    const changed = token.slice(0, -2) + (token.endsWith("AA") ? "BB" : "AA");
    const first = (token[0] === "A" ? "B" : "A") + token.slice(1);
    for (const forged of [changed, first, "x", ""]) {
      assert.deepEqual((await post(forged, lines[1])).body, { status: 410 }, forged);
      const again = (await get(forged)).body;
      assert.equal(again.status, 410, forged);
      assert.notEqual(again.token, token);
    }
    // Version 1.
    const v1 = { topic: "plain:b", event: "phx_join", payload: {}, ref: "1", join_ref: "1" };
    const url = `http://${server.client}/socket/longpoll`;
    const of = (await json(url)).body.token;
    const sent = await json(`${url}?token=${of}`, { method: "POST", body: JSON.stringify(v1) });
    assert.deepEqual(sent.body, { status: 200 });
    assert.deepEqual((await json(`${url}?token=${of}`)).body.messages, [
      '{"topic":"plain:b","event":"phx_reply","payload":{"status":"ok","response":{}},"ref":"1","join_ref":"1"}',
    ]);

    // An invalid message, and an unknown version.
    assert.equal((await post(token, "nonsense")).body.status, 400);
    assert.equal((await json(`http://${server.client}/socket/longpoll?vsn=9`)).body.status, 403);
    assert.equal((await get(token, "&x=1")).body.status, 204, "the session lives");
  },

  // A client that aborts a poll or loses its network misses no message.
  polls_that_are_abandoned: async () => {
    const closed = () => metric('throng_connections_closed_total{reason="client"}');
    const token = await open();
    await post(token, '["1","1","plain:a","phx_join",{}]');
    await messages(token, 1);
    for (let at = 0; at < 5; at += 1) {
      const [host, port] = server.client.split(":");
      const poll = net.connect(port, host);
      poll.on("error", () => {});
      const before = await closed();
      poll.write(`GET /socket/longpoll?vsn=2.0.0&token=${token} HTTP/1.1\r\nHost: t\r\n\r\n`);
      await sleep(100);
      poll.destroy();
      await until("the server knows that the poll is gone", async () => (await closed()) > before);
      await publish("plain:a", { at });
      const came = await get(token);
      assert.deepEqual(came.body.messages, [`[null,null,"plain:a","message",{"at":${at}}]`]);
    }
    // The client polls again before the server knows that the last poll is gone.
    const polls = [get(token), get(token)];
    assert.equal((await Promise.race(polls)).body.status, 204);
    await publish("plain:a", { last: 1 });
    // The other poll may have timed out.
    const all = (await Promise.all(polls)).flatMap(({ body }) => body.messages ?? []);
    if (all.length === 0) all.push(...(await messages(token, 1)));
    assert.deepEqual(all, ['[null,null,"plain:a","message",{"last":1}]']);
  },

  // A burst of the application arrives completely, although each poll takes only the messages that wait.
  a_burst_of_the_application: async () => {
    const channel = await join(polled(LATEST), "plain:burst");
    const of = (at) => ({ publish: { topic: "plain:burst", data: { at } } });
    await api("batch", { commands: Array.from({ length: 400 }, (_, at) => of(at)) });
    await until("all came", () => channel.inbox.all("message").length === 400);
    assert.deepEqual([channel.joins, channel.socket.closes], [1, []]);
  },

  // With a timeout of 1 s, a session may be without a poll for 12 s.
  session_ends_without_polls: async () => {
    const channel = await join(polled(LATEST), "plain:open");
    const token = await open("&user=carol");
    await post(token, '["1","1","room:a","phx_join",{}]');
    const polled_at = Date.now();
    await messages(token, 2);
    assert.equal(await members("room:a"), 1);
    await until("the session has ended", async () => (await members("room:a")) === 0);
    assert.ok(Date.now() - polled_at > 10_000, "too early");
    assert.equal((await presence("room:a")).users, 0);
    assert.deepEqual((await post(token, '["1","2","room:a","x",{}]')).body, { status: 410 });
    const { body } = await get(token);
    assert.equal(body.status, 410);
    assert.notEqual(body.token, token);
    // A session that polls all the time stays.
    assert.deepEqual([channel.joins, await members("plain:open")], [1, 1]);
    assert.deepEqual(await push(channel, "say", {}), OK);
  },

  disconnect_by_the_application: async () => {
    // Older clients silently accept a new session, and don't rejoin in it.
    const channel = await join(polled(LATEST, { user: "erin" }), "plain:a");
    assert.equal((await api("disconnect", { user: "erin" })).disconnected, 1);
    await until("it has joined again", () => channel.joins === 2);
    assert.equal(channel.socket.closes[0], 3410);
    assert.deepEqual(await push(channel, "say", { back: 1 }), OK);
    assert.deepEqual(await channel.inbox.next("say"), { back: 1, phx_sender: "erin" });
    const token = await open("&user=dave");
    assert.equal((await api("disconnect", { user: "dave" })).disconnected, 1);
    assert.deepEqual((await post(token, '["1","1","plain:a","phx_join",{}]')).body, { status: 410 });
  },

  fallback_from_websocket: () =>
    Promise.all(
      // A proxy that rejects, one that breaks the connection, and one that never responds.
      [
        (_, socket) => socket.end("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n"),
        (_, socket) => socket.destroy(),
        () => {},
      ].map(async (upgrade, at) => {
        const url = `ws://127.0.0.1:${await proxy(upgrade)}/socket`;
        const socket = connect(LATEST, { url, longPollFallbackMs: 300 });
        const topic = `plain:fallback-${at}`;
        const channel = await join(socket, topic);
        assert.equal(socket.transport, LATEST.phoenix.LongPoll);
        await publish(topic, { hi: at });
        assert.deepEqual(await channel.inbox.next("message"), { hi: at });
        assert.deepEqual(await push(channel, "say", {}), OK);
      }),
    ),

  no_fallback_where_websockets_work: async () => {
    const socket = connect(LATEST, { longPollFallbackMs: PATIENCE_MS });
    const channel = await join(socket, "plain:primary");
    // The server responds to its first ping.
    await until("it stays with its WebSocket", () => socket.primaryPassedHealthCheck);
    assert.notEqual(socket.transport, LATEST.phoenix.LongPoll);
    assert.equal(channel.joins, 1);
  },
});
