// Presence, as the client's own Presence object sees it.
"use strict";

const {
  assert, KINDS, POLLED, LATEST, OK, until, connect, push, leave, disconnect,
  listen, listenWs, presence, each, run,
} = require("./lib.cjs");

// The same client over long poll.
const polls = (kind) => POLLED.find(({ phoenix }) => phoenix === kind.phoenix);

// Tracks a channel: `users` has the present users with the metas of each.
function watch(kind, channel) {
  const followed = new kind.phoenix.Presence(channel);
  const watched = {
    joined: [],
    left: [],
    get users() {
      const all = followed.list((user, { metas }) => [user, metas]);
      return Object.fromEntries(all.sort(([a], [b]) => (a < b ? -1 : 1)));
    },
    // Names with the number of their connections.
    get counts() {
      return Object.fromEntries(Object.entries(this.users).map(([user, metas]) => [user, metas.length]));
    },
    are: (counts) =>
      until(`${JSON.stringify(counts)} are there, and not ${JSON.stringify(watched.counts)}`, () =>
        same(watched.counts, counts),
      ),
  };
  followed.onJoin((user, before) => before || watched.joined.push(user));
  followed.onLeave((user, after) => after.metas.length || watched.left.push(user));
  return watched;
}

function same(a, b) {
  try {
    assert.deepEqual(a, b);
    return true;
  } catch {
    return false;
  }
}

// The client must track the topic before it joins, or it misses the present users.
async function enter(kind, topic, user, { payload, ...options } = {}) {
  const socket = connect(kind, { user, ...options });
  const channel = socket.channel(topic, payload ?? {});
  const seen = watch(kind, channel);
  channel.events = [];
  channel.onMessage = (event, payload) => (channel.events.push([event, payload]), payload);
  await new Promise((done, failed) => channel.join().receive("ok", done).receive("error", failed));
  return { socket, channel, seen };
}

run({
  state_and_diffs: () =>
    each(KINDS, async (kind) => {
      const zoe = "zoë & co";
      const topic = `room:${kind.name}`;
      const first = await enter(kind, topic, zoe, { payload: { meta: { name: "A", n: [1] } } });
      await first.seen.are({ [zoe]: 1 });
      assert.equal(first.seen.users[zoe][0].name, "A");
      assert.deepEqual(first.seen.users[zoe][0].n, [1]);
      const bob = await enter(kind, topic, "bob", { payload: { meta: { name: "B" } } });
      const polled = await enter(polls(kind), topic, "bob", { transport: "longpoll" });
      for (const { seen } of [first, bob, polled]) await seen.are({ bob: 2, [zoe]: 1 });
      const refs = Object.values(first.seen.users).flat().map((meta) => meta.phx_ref);
      assert.ok(refs.every((ref) => typeof ref === "string" && ref));
      assert.equal(new Set(refs).size, 3, "each meta has a ref of its own");
      assert.deepEqual(first.seen.users.bob.map(({ name }) => name).sort(), ["B", undefined]);

      await disconnect(bob.socket);
      await first.seen.are({ bob: 1, [zoe]: 1 });
      assert.deepEqual(first.seen.left, []);
      await leave(polled.channel);
      await first.seen.are({ [zoe]: 1 });
      assert.deepEqual(first.seen.left, ["bob"]);
      // A connection without a user is in the topic, and not in the list.
      const nobody = await enter(kind, topic, undefined);
      await nobody.seen.are({ [zoe]: 1 });
    }),

  a_connection_that_dies_leaves: () =>
    each(KINDS, async (kind) => {
      const topic = `room:${kind.name}`;
      const never = { reconnectAfterMs: () => 1e6 };
      const alice = await enter(kind, topic, "alice");
      const bob = await enter(kind, topic, "bob", never);
      const carol = await enter(kind, topic, "carol", never);
      await alice.seen.are({ alice: 1, bob: 1, carol: 1 });
      bob.socket.conn._socket.resetAndDestroy();
      carol.socket.conn._socket.destroy();
      await alice.seen.are({ alice: 1 });
      assert.deepEqual(alice.seen.left.sort(), ["bob", "carol"]);
    }),

  a_silent_connection_leaves: async () => {
    const alice = await enter(LATEST, "room:a", "alice", { heartbeatIntervalMs: 500 });
    const bob = await enter(LATEST, "room:a", "bob", { heartbeatIntervalMs: 1e6, reconnectAfterMs: () => 1e6 });
    await alice.seen.are({ alice: 1, bob: 1 });
    bob.socket.conn._socket.pause();
    await alice.seen.are({ alice: 1 });
  },

  presence_update: () =>
    each(KINDS, async (kind) => {
      const topic = `room:${kind.name}`;
      const alice = await enter(kind, topic, "alice");
      const bob = await enter(kind, topic, "bob", { payload: { meta: { typing: false } } });
      await alice.seen.are({ alice: 1, bob: 1 });
      const [before] = alice.seen.users.bob;
      assert.deepEqual(await push(bob.channel, "presence_update", { typing: true }), OK);
      await until("the update is seen", () => alice.seen.users.bob?.[0].typing === true);
      const [after] = alice.seen.users.bob;
      assert.notEqual(after.phx_ref, before.phx_ref);
      assert.equal(after.phx_ref_prev, before.phx_ref);
      await alice.seen.are({ alice: 1, bob: 1 });
      assert.deepEqual(alice.seen.left, [], "an update is no leave");
      const late = await enter(kind, topic, "carol");
      assert.equal(late.seen.users.bob[0].typing, true);
      const big = await push(bob.channel, "presence_update", { big: "x".repeat(2000) });
      assert.equal(big.status, "error");
      const nobody = await enter(kind, topic, undefined);
      const no = await push(nobody.channel, "presence_update", {});
      assert.match(no.response.reason, /has no user/);
    }),

  other_transports_count: async () => {
    const topic = "room:a";
    const alice = await enter(LATEST, topic, "alice");
    const sse = await listen(`/sse?user=bob&topic=${topic}`);
    const ws = await listenWs(`user=carol&topic=${topic}`);
    await alice.seen.are({ alice: 1, bob: 1, carol: 1 });
    const dave = await enter(LATEST, topic, "dave");
    for (const inbox of [sse, ws]) {
      await until("dave's join arrives", () =>
        inbox.all("presence_diff").some((diff) => {
          const { joins } = typeof diff === "string" ? JSON.parse(diff) : diff.data;
          return joins.dave?.metas.length === 1;
        }),
      );
    }
    await until("the list is whole", async () => (await presence(topic)).users === 4);
    const answer = await presence(topic);
    assert.deepEqual([answer.topic, answer.users, answer.connections], [topic, 4, 4]);
    assert.deepEqual(Object.keys(answer.presences).sort(), ["alice", "bob", "carol", "dave"]);
    sse.close();
    ws.close();
    await disconnect(dave.socket);
    await alice.seen.are({ alice: 1 });
    assert.equal(await presence("plain:a").then((answer) => answer.error.code), "no_presence");
  },

  // At most 3 users are named.
  counts_above_the_cap: async () => {
    const topic = "room:a";
    const all = [];
    for (const user of ["u1", "u2", "u3"]) all.push(await enter(LATEST, topic, user));
    await all[0].seen.are({ u1: 1, u2: 1, u3: 1 });
    all.push(await enter(LATEST, topic, "u4"));
    const count = ({ channel }) =>
      channel.events.findLast(([event]) => event === "presence_count")?.[1];
    for (const one of all) {
      await until("the counts arrive", () => same(count(one), { users: 4, connections: 4 }));
      await one.seen.are({});
    }
    const answer = await presence(topic);
    assert.deepEqual(
      [answer.users, answer.connections, answer.presences],
      [4, 4, null],
    );
    const late = await enter(LATEST, topic, "u4");
    await until("the late client has the counts", () => count(late));
    await until("counts change", () => same(count(all[0]), { users: 4, connections: 5 }));
    await disconnect(late.socket);
    await disconnect(all[3].socket);
    await disconnect(all[2].socket);
    for (const { seen } of all.slice(0, 2)) await seen.are({ u1: 1, u2: 1 });
    const again = await enter(LATEST, topic, "u3");
    await again.seen.are({ u1: 1, u2: 1, u3: 1 });
  },

  churn: async () => {
    const topic = "room:churn";
    const seed = Number(process.env.PRESENCE_SEED ?? (Math.random() * 2 ** 31) | 0);
    let state = seed;
    const random = (below) => {
      state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
      return Math.floor((state / 2 ** 32) * below);
    };
    try {
      const observer = await enter(LATEST, topic, "observer");
      const there = [];
      for (let step = 0; step < 200; step += 1) {
        if (there.length && (there.length > 12 || random(2))) {
          const [one] = there.splice(random(there.length), 1);
          const tcp = one.socket.conn._socket;
          // A long poll that is abandoned without a leave is present until its session ends.
          await [
            () => leave(one.channel),
            () => (tcp ? disconnect(one.socket) : leave(one.channel)),
            () => (tcp ? tcp.destroy() : leave(one.channel)),
          ][random(3)]();
          continue;
        }
        const user = `user${random(6)}`;
        const transport = random(4) ? undefined : "longpoll";
        const kind = (transport ? POLLED : KINDS)[random(transport ? 2 : 4)];
        const one = await enter(kind, topic, user, { transport, reconnectAfterMs: () => 1e6 });
        there.push({ ...one, user });
      }
      const truth = { observer: 1 };
      for (const { user } of there) truth[user] = (truth[user] ?? 0) + 1;
      await observer.seen.are(truth);
      for (const { seen } of there) await seen.are(truth);
      const late = await enter(LATEST, topic, "observer");
      await late.seen.are({ ...truth, observer: 2 });
    } catch (error) {
      error.message = `PRESENCE_SEED=${seed}: ${error.message}`;
      throw error;
    }
  },
});
