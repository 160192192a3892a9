// supabase's realtime-js, a Phoenix client of another dialect: what it broadcasts are binary messages
// of a kind that phoenix.js doesn't have.
"use strict";

const { RealtimeClient } = require("@supabase/realtime-js");
const { assert, WebSocket, LATEST, Ear, server, connect, join, publish, until, run } = require("./lib.cjs");

// A client in a topic, what it hears there, and how often its connection was closed.
async function enter(name) {
  const params = { apikey: "none" };
  const client = new RealtimeClient(`ws://${server.client}/socket`, { params, transport: WebSocket });
  const ear = new Ear();
  const channel = client.channel(name, { config: { broadcast: { ack: true } } });
  channel.on("broadcast", { event: "*" }, ({ event, payload, meta }) => ear.hear(event, { payload, meta }));
  let status;
  channel.subscribe((now) => (status = now));
  await until("it is subscribed", () => status === "SUBSCRIBED");
  return { client, channel, ear, status: () => status };
}

const scenarios = {
  async broadcasts() {
    const [alice, bob] = [await enter("room"), await enter("room")];
    const phoenix = await join(connect(LATEST), "realtime:room");
    const payload = { x: 1.5, text: 'a "b"\né' };
    const sent = await alice.channel.send({ type: "broadcast", event: "cursor", payload });
    assert.equal(sent, "ok");
    assert.deepEqual(await bob.ear.next("cursor"), { payload, meta: undefined });
    // The others hear it as an event of this name.
    const heard = await phoenix.ear.next("broadcast");
    assert.deepEqual(heard, { type: "broadcast", event: "cursor", payload });
    const bytes = new Uint8Array([0, 255]).buffer;
    assert.equal(await alice.channel.send({ type: "broadcast", event: "bytes", payload: bytes }), "ok");
    const { payload: text } = await bob.ear.next("bytes");
    assert.deepEqual(text, { data: "AP8=", encoding: "base64" });
    // The application speaks to it in the same way.
    await publish("realtime:room", { type: "broadcast", event: "news", payload: 7 }, { event: "broadcast" });
    assert.equal((await alice.ear.next("news")).payload, 7);
    // A name that its encoder can't write is refused, and ends nothing.
    const lost = await Promise.race([
      alice.channel.send({ type: "broadcast", event: "é", payload }),
      new Promise((done) => setTimeout(done, 500, "unanswered")),
    ]);
    assert.notEqual(lost, "ok");
    assert.equal(await alice.channel.send({ type: "broadcast", event: "after", payload }), "ok");
    assert.deepEqual((await bob.ear.next("after")).payload, payload);
    assert.equal(alice.status(), "SUBSCRIBED");
    assert.deepEqual(alice.ear.heard, []);
    await Promise.all([alice, bob].map(({ client }) => client.disconnect()));
  },
};

run(scenarios);
