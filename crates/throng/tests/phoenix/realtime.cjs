// supabase's realtime-js, a Phoenix client with its own dialect. Its broadcasts are binary messages of a kind that
// phoenix.js does not have.
"use strict";

const { RealtimeClient } = require("@supabase/realtime-js");
const { PATIENCE_MS, assert, WebSocket, LATEST, Inbox, server, connect, join, publish, until, run } = require("./lib.cjs");

// Joins a topic. Returns the channel, its received messages, and how often its connection was closed.
async function enter(name) {
  const params = { apikey: "none" };
  const client = new RealtimeClient(`ws://${server.client}/socket`, { params, transport: WebSocket, timeout: PATIENCE_MS });
  const inbox = new Inbox();
  const channel = client.channel(name, { config: { broadcast: { ack: true } } });
  channel.on("broadcast", { event: "*" }, ({ event, payload, meta }) => inbox.receive(event, { payload, meta }));
  let status;
  channel.subscribe((now) => (status = now));
  await until("it is subscribed", () => status === "SUBSCRIBED");
  return { client, channel, inbox, status: () => status };
}

const scenarios = {
  async broadcasts() {
    const [alice, bob] = [await enter("room"), await enter("room")];
    const phoenix = await join(connect(LATEST), "realtime:room");
    const payload = { x: 1.5, text: 'a "b"\né' };
    const sent = await alice.channel.send({ type: "broadcast", event: "cursor", payload });
    assert.equal(sent, "ok");
    assert.deepEqual(await bob.inbox.next("cursor"), { payload, meta: undefined });
    // The others receive the message as an event of this name.
    const received = await phoenix.inbox.next("broadcast");
    assert.deepEqual(received, { type: "broadcast", event: "cursor", payload });
    const bytes = new Uint8Array([0, 255]).buffer;
    assert.equal(await alice.channel.send({ type: "broadcast", event: "bytes", payload: bytes }), "ok");
    const { payload: text } = await bob.inbox.next("bytes");
    assert.deepEqual(text, { data: "AP8=", encoding: "base64" });
    // The application sends to this client in the same way.
    await publish("realtime:room", { type: "broadcast", event: "news", payload: 7 }, { event: "broadcast" });
    assert.equal((await alice.inbox.next("news")).payload, 7);
    // A name that its encoder can't write is rejected, and the connection stays open.
    const lost = await Promise.race([
      alice.channel.send({ type: "broadcast", event: "é", payload }),
      new Promise((done) => setTimeout(done, 500, "no reply")),
    ]);
    assert.notEqual(lost, "ok");
    assert.equal(await alice.channel.send({ type: "broadcast", event: "after", payload }), "ok");
    assert.deepEqual((await bob.inbox.next("after")).payload, payload);
    assert.equal(alice.status(), "SUBSCRIBED");
    assert.deepEqual(alice.inbox.events, []);
    await Promise.all([alice, bob].map(({ client }) => client.disconnect()));
  },
};

run(scenarios);
