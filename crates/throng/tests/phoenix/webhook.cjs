// Webhooks about joins, events and publishes.
"use strict";

const http = require("node:http");
const {
  assert, KINDS, LATEST, OK, Inbox, until, connect, tryJoin, join, push, refused, bytes, json,
  metric, publish, members, each, listen, server, report, readInput, run,
} = require("./lib.cjs");

// An application. `decide` returns the reply for each event, an HTTP status for all of them, or nothing to never
// respond. It prints its address, and reads the server's.
async function application(decide) {
  const received = [];
  const requests = [];
  const app = http.createServer(async (request, response) => {
    let body = "";
    for await (const chunk of request) body += chunk;
    const { events, ...rest } = JSON.parse(body);
    assert.deepEqual(rest, {});
    requests.push({ method: request.method, headers: request.headers, url: request.url });
    received.push(...events);
    const replies = await Promise.all(events.map(decide));
    if (replies.some((reply) => reply === undefined)) return;
    const status = replies.find((reply) => typeof reply === "number") ?? 200;
    response.writeHead(status, { "Content-Type": "application/json" });
    response.end(status === 200 ? JSON.stringify({ replies }) : "no");
  });
  await new Promise((done) => app.listen(0, "127.0.0.1", done));
  report({ port: app.address().port });
  Object.assign(server, await readInput());
  return { received, requests };
}

const reply = (response, status = "ok") => ({ status, response });

run({
  joins_and_events: async () => {
    const { received, requests } = await application(({ kind, topic, event, payload }) => {
      if (topic.startsWith("asked:no")) return reply({ reason: "members only" }, "error");
      if (kind === "subscribe") return reply({ welcome: topic });
      if (event === "fail") return reply({ reason: "so it is" }, "error");
      if (event === "list") return reply([1, "é"]);
      return event === "bare" ? {} : reply({ echo: payload });
    });
    await each(KINDS, async (kind) => {
      const user = `user-${kind.name}`;
      const topic = `asked:${kind.name}`;
      const socket = connect(kind, { user, rejoinAfterMs: () => 1e6 });
      const channel = await tryJoin(socket, topic, { token: "s3cret", meta: { name: "A" } });
      assert.deepEqual(channel.reply, reply({ welcome: topic }));
      const about = (event) => received.filter((it) => it.topic === topic && it.event === event);
      const [{ connection, ...join }] = received.filter((it) => it.topic === topic);
      assert.match(connection, /^[0-9a-f]{8}-\d+-\d+-\d+$/);
      const payload = { token: "s3cret", meta: { name: "A" } };
      const who = { user, users: [user], transport: "phoenix" };
      assert.deepEqual(join, { kind: "subscribe", topic, payload, ...who });
      const state = await channel.inbox.next("presence_state");
      assert.equal(state[user].metas[0].name, "A", "meta comes from the join that was allowed");

      assert.deepEqual(await push(channel, "say", { hi: "é" }), reply({ echo: { hi: "é" } }));
      const [said] = about("say");
      const want = { kind: "message", topic, event: "say", payload: { hi: "é" }, ...who };
      assert.deepEqual(said, { ...want, connection });
      assert.deepEqual(await push(channel, "fail", {}), refused("so it is"));
      assert.deepEqual(await push(channel, "list", {}), reply([1, "é"]));
      assert.deepEqual(await push(channel, "bare", {}), OK);
      assert.deepEqual(channel.inbox.all("say"), [], "events go to the application alone");
      // The requests arrive in order.
      const many = Array.from({ length: 50 }, (_, at) => push(channel, "count", { at }));
      const echoes = (await Promise.all(many)).map(({ response }) => response.echo.at);
      assert.deepEqual(echoes, [...echoes.keys()]);
      assert.deepEqual(about("count").map(({ payload }) => payload.at), echoes);

      // A client that the application has admitted may read the history. For others the server calls the webhook.
      const retained = await tryJoin(socket, `kept:${kind.name}`);
      assert.equal(retained.reply.status, "ok");
      await publish(retained.topic, { n: 1 });
      const page = await push(retained, "history", { limit: 5 });
      assert.equal(page.status, "ok", JSON.stringify(page));
      assert.deepEqual(page.response.messages.map(({ data }) => data), [{ n: 1 }]);
      const { status } = await json(`http://${server.client}/history?topic=${retained.topic}`);
      assert.equal(status, 200);
      const { event, transport } = received.findLast((it) => it.topic === retained.topic);
      assert.deepEqual([event, transport], [undefined, "http"]);

      const no = await tryJoin(socket, `asked:no-${kind.name}`);
      assert.deepEqual(no.reply, refused("members only"));
      assert.equal(await members(`asked:no-${kind.name}`), 0);
      if (kind.binary) {
        const echo = await push(channel, "bin", bytes(1, 255));
        assert.deepEqual(echo, reply({ echo: { data: "Af8=", encoding: "base64" } }));
      }
    });
    // A client without a user, by long poll.
    const polled = connect(LATEST, { transport: "longpoll" });
    const channel = await tryJoin(polled, "asked:somebody");
    assert.deepEqual(channel.reply, reply({ welcome: "asked:somebody" }));
    const { user, users } = received.find(({ topic }) => topic === "asked:somebody");
    assert.deepEqual([user, users], [null, []]);
    assert.deepEqual(await push(channel, "say", { a: 1 }), reply({ echo: { a: 1 } }));
    for (const { method, headers, url } of requests) {
      assert.deepEqual([method, url, headers["content-type"]], ["POST", "/hook/a", "application/json"]);
      assert.equal(headers.authorization, "Bearer 0123456789abcdef");
    }
  },

  publishes: async () => {
    const { received } = await application(({ kind, payload }) => {
      if (kind !== "publish") return {};
      if (payload.say === "spam") return reply({ reason: "no spam" }, "error");
      if (payload.say === "damn") return { payload: { say: "d***" }, tags: ["mild"] };
      return payload.say === "bytes" ? { payload: "Af8=", encoding: "base64" } : {};
    });
    const say = (channel, text) => push(channel, "say", { say: text });
    const clients = [...KINDS, { ...LATEST, name: "polled", transport: "longpoll" }];
    await each(clients, async (kind) => {
      const { transport, name: user } = kind;
      const topic = `moderated:${user}`;
      const channel = await join(connect(kind, { user, transport }), topic);
      const other = await join(connect(LATEST), topic);
      const stream = await listen(`/stream?topic=${topic}`);
      await until("all are there", async () => (await members(topic)) === 3);
      const all = [channel.inbox, other.inbox];
      const delivers = async (want, tags) => {
        const payload = { ...want, phx_sender: user };
        for (const inbox of all) assert.deepEqual(await inbox.next("say"), payload);
        const message = await stream.next("say");
        assert.deepEqual([message.data, message.sender, message.tags], [want, user, tags]);
      };
      assert.deepEqual(await say(channel, "hello"), OK);
      await delivers({ say: "hello" });
      assert.deepEqual(await say(channel, "spam"), refused("no spam"));
      assert.deepEqual(await say(channel, "damn"), OK);
      await delivers({ say: "d***" }, ["mild"]);
      // Members did not get the rejected message: the next one that they got came after it.
      const about = received.filter((it) => it.topic === topic);
      assert.deepEqual(about.map((it) => it.payload.say), ["hello", "spam", "damn"]);
      const [{ connection, ...first }] = about;
      assert.match(connection, /^[0-9a-f]{8}-\d+-\d+-\d+$/);
      const who = { user, users: [user], transport: transport ? "phoenix_longpoll" : "phoenix" };
      assert.deepEqual(first, { kind: "publish", topic, event: "say", payload: { say: "hello" }, ...who });
      assert.deepEqual(await say(channel, "bytes"), OK);
      assert.equal((await stream.next("say")).encoding, "base64");
      // The webhooks run one after the other, so the messages stay in order.
      const many = Array.from({ length: 40 }, (_, at) => push(channel, "count", { at }));
      assert.deepEqual(await Promise.all(many), many.map(() => OK));
      for (const inbox of all) {
        for (const at of many.keys()) assert.equal((await inbox.next("count")).at, at);
      }
      stream.close();
    });
  },

  failures: async () => {
    let mode = 500;
    await application(({ kind }) => (kind === "subscribe" && mode === 500 ? reply({}) : mode));
    const socket = connect(LATEST, { rejoinAfterMs: () => 1e6 });
    const channel = await join(socket, "asked:a");
    const error = refused("the application answered with an error");
    assert.deepEqual(await push(channel, "say", {}), error);
    mode = 404;
    assert.deepEqual(await push(channel, "say", {}), error);
    assert.deepEqual((await tryJoin(socket, "asked:b")).reply, error);
    mode = undefined;
    const late = refused("the application did not answer in time");
    const [said, joined] = await Promise.all([push(channel, "say", {}), tryJoin(socket, "asked:c")]);
    assert.deepEqual([said, joined.reply], [late, late]);
    mode = "nonsense";
    const wrong = refused("the application's answer was not understood");
    assert.deepEqual(await push(channel, "say", {}), wrong);
    const nowhere = refused("the application can't be reached");
    assert.deepEqual((await tryJoin(socket, "silent:a")).reply, nowhere);
    mode = { status: "ok", response: { at: "last" } };
    assert.deepEqual(await push(channel, "say", {}), reply({ at: "last" }));
  },

  leave_while_a_join_waits: async () => {
    let free;
    const waits = new Promise((done) => (free = done));
    const { received } = await application(async ({ payload }) => {
      if (payload.slow) await waits;
      return reply({ slow: payload.slow ?? false });
    });
    const socket = connect(LATEST);
    // This sends raw messages, since the client library waits for the join's reply before it leaves.
    const inbox = new Inbox();
    socket.onMessage(({ event, payload, ref }) => inbox.receive(`${ref} ${event}`, payload));
    const send = (join_ref, ref, topic, event, payload) =>
      socket.push({ join_ref, ref, topic, event, payload });
    await until("it is open", () => socket.isConnected());
    send("901", "901", "asked:a", "phx_join", { slow: true });
    send("901", "902", "asked:a", "say", {});
    assert.deepEqual(await inbox.next("902 phx_reply"), refused("unmatched topic"));
    await until("the application has the request", () => received.length === 1);
    send("901", "903", "asked:a", "phx_leave", {});
    assert.deepEqual(await inbox.next("903 phx_reply"), OK);
    assert.deepEqual(await inbox.next("901 phx_close"), {});
    assert.equal(await members("asked:a"), 0);
    free();
    await until("the late response has come", async () => (await metric("throng_webhook_waiting")) === 0);
    send("901", "905", "asked:a", "say", {});
    assert.deepEqual(await inbox.next("905 phx_reply"), refused("unmatched topic"));
    assert.equal(await members("asked:a"), 0, "the late response admits no client");
    // The client can join afterwards.
    send("904", "904", "asked:a", "phx_join", {});
    assert.deepEqual(await inbox.next("904 phx_reply"), reply({ slow: false }));
    assert.deepEqual(inbox.all("901 phx_reply"), []);
    await publish("asked:a", { hi: 1 });
    assert.deepEqual(await inbox.next("null message"), { hi: 1 });
    assert.equal(await members("asked:a"), 1);
  },
});
