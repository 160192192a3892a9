// Connections that break and reconnect by themselves.
"use strict";

const {
  assert, KINDS, POLLED, OK, until, connect, join, push, api, publish, each, report, readInput, run,
} = require("./lib.cjs");

const came_back = (channel, times) =>
  until(`${channel.topic} was joined ${times} times, and not ${channel.joins}`, () => channel.joins >= times);

run({
  // The test kills the server and starts another at the same port.
  restart: async () => {
    const channels = [];
    await each(KINDS, async (kind) => {
      channels.push(await join(connect(kind, { user: "alice" }), `plain:${kind.name}`));
    });
    await each(POLLED, async (kind) => {
      const polled = connect(kind, { user: "alice", transport: "longpoll" });
      channels.push(await join(polled, `plain:polled-${kind.name}`));
    });
    report("joined");
    await readInput();
    for (const channel of channels) await came_back(channel, 2);
    for (const channel of channels) {
      assert.deepEqual(await push(channel, "say", { back: 1 }), OK);
      assert.deepEqual(await channel.inbox.next("say"), { back: 1, phx_sender: "alice" });
    }
  },

  disconnect_by_the_application: () =>
    each(KINDS, async (kind) => {
      const user = `user-${kind.name}`;
      const channel = await join(connect(kind, { user }), `plain:${kind.name}`);
      assert.equal((await api("disconnect", { user })).disconnected, 1);
      await came_back(channel, 2);
      assert.equal(channel.socket.closes[0], 1001);
      await publish(`plain:${kind.name}`, { back: 1 });
      assert.deepEqual(await channel.inbox.next("message"), { back: 1 });
    }),

  // When a server stops properly, the client reconnects to another one, as with Phoenix.
  drain: async () => {
    const channels = [];
    await each(KINDS, async (kind) => {
      channels.push(await join(connect(kind), `plain:${kind.name}`));
    });
    report("joined");
    await readInput();
    for (const channel of channels) {
      await came_back(channel, 2);
      assert.equal(channel.socket.closes[0], 1012);
    }
  },

  unsubscribe_by_the_application: () =>
    each(KINDS, async (kind) => {
      const user = `user-${kind.name}`;
      const topic = `plain:${kind.name}`;
      const channel = await join(connect(kind, { user }), topic);
      let closed = 0;
      channel.onClose(() => (closed += 1));
      assert.equal((await api("unsubscribe", { user, topic })).connections, 1);
      await until("the client knows that the channel is closed", () => closed === 1);
    }),
});
