// Presence, as phoenix.js's Presence object sees it.
"use strict";

const {
  assert, KINDS, POLLED, LATEST, OK, until, connect, sendHeartbeats, push, leave, disconnect,
  listen, listenWs, api, presence, each, run,
} = require("./lib.cjs");

// The same client over long poll.
const polls = (kind) => POLLED.find(({ phoenix }) => phoenix === kind.phoenix);

// Tracks a channel: `users` has the present users, each with its entries.
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

// A client of another transport that applies presence notices as phoenix.js does. `inbox` has its messages, which are
// objects on SSE as well.
function follow(inbox, topic) {
  const { Presence } = LATEST.phoenix;
  const followed = {
    inbox,
    state: {},
    counted: undefined,
    lists: 0,
    get counts() {
      const all = Object.entries(followed.state).map(([user, { metas }]) => [user, metas.length]);
      return Object.fromEntries(all.sort(([a], [b]) => (a < b ? -1 : 1)));
    },
    are: (counts) =>
      until(`${JSON.stringify(counts)} are there, and not ${JSON.stringify(followed.counts)}`, () =>
        same(followed.counts, counts),
      ),
  };
  const receive = (event, payload) => {
    const message = typeof payload === "string" ? JSON.parse(payload) : payload;
    if (message.topic !== topic) return;
    if (event === "presence_state") {
      // A snapshot that is published to all members is a message like any other.
      if (!followed.lists) assert.ok(!("id" in message), "no client can come back to a list");
      followed.lists += 1;
      followed.state = Presence.syncState(followed.state, message.data);
    }
    if (event === "presence_diff") followed.state = Presence.syncDiff(followed.state, message.data);
    if (event === "presence_count") followed.counted = message.data;
  };
  inbox.events.splice(0).forEach(([event, payload]) => receive(event, payload));
  const before = inbox.receive.bind(inbox);
  inbox.receive = (event, payload) => {
    if (event.startsWith("presence_")) receive(event, payload);
    else before(event, payload);
  };
  return followed;
}

// A plain WebSocket that waits for the reply to each command.
async function ws(query, topic) {
  const inbox = await listenWs(query);
  const followed = follow(inbox, topic);
  followed.request = async (command) => {
    inbox.send({ id: 1, topic, ...command });
    const { ok, error } = await inbox.next("reply");
    return ok ?? error.code;
  };
  followed.close = inbox.close;
  return followed;
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
      // A connection without a user is a member of the topic, but not in the snapshot.
      const anonymous = await enter(kind, topic, undefined);
      await anonymous.seen.are({ [zoe]: 1 });
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
    const alice = await enter(LATEST, "room:a", "alice", { heartbeatIntervalMs: 1e6 });
    sendHeartbeats(alice.socket, 500);
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
      const anonymous = await enter(kind, topic, undefined);
      const no = await push(anonymous.channel, "presence_update", {});
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
    const response = await presence(topic);
    assert.deepEqual([response.topic, response.users, response.connections], [topic, 4, 4]);
    assert.deepEqual(Object.keys(response.presences).sort(), ["alice", "bob", "carol", "dave"]);
    sse.close();
    ws.close();
    await disconnect(dave.socket);
    await alice.seen.are({ alice: 1 });
    assert.equal(await presence("plain:a").then((response) => response.error.code), "no_presence");
  },

  // Notices name at most 3 users.
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
    const response = await presence(topic);
    assert.deepEqual(
      [response.users, response.connections, response.presences],
      [4, 4, null],
    );
    const observer = await ws("", topic);
    await observer.request({ type: "subscribe" });
    await until("the counts come on /ws too", () => same(observer.counted, { users: 4, connections: 4 }));
    assert.deepEqual([observer.lists, observer.counts], [1, {}]);
    assert.equal((await observer.request({ type: "presence" })).presences, null);
    const late = await enter(LATEST, topic, "u4");
    await until("the late client has the counts", () => count(late));
    await until("counts change", () => same(count(all[0]), { users: 4, connections: 5 }));
    await disconnect(late.socket);
    await disconnect(all[3].socket);
    await disconnect(all[2].socket);
    for (const { seen } of all.slice(0, 2)) await seen.are({ u1: 1, u2: 1 });
    await observer.are({ u1: 1, u2: 1 });
    const again = await enter(LATEST, topic, "u3");
    await again.seen.are({ u1: 1, u2: 1, u3: 1 });
  },

  // Every client gets the snapshot before diffs, in whatever way it has entered the topic.
  other_transports_are_notified: async () => {
    const topic = "room:notified";
    const alice = await enter(LATEST, topic, "alice", { payload: { meta: { name: "A" } } });
    await alice.seen.are({ alice: 1 });
    const query = `topic=${topic}&topic=plain:other`;
    const sse = follow(await listen(`/sse?format=json&${query}`), topic);
    const stream = follow(await listen(`/stream?${query}`), topic);
    const connected = await ws(query, topic);
    const subscribed = await ws("", topic);
    assert.deepEqual(await subscribed.request({ type: "subscribe" }), { topic });
    const put = await ws("user=put", topic);
    await api("subscribe", { user: "put", topic });
    const stored = await ws("", topic);
    await api("subscriptions", { user: "stored", add: [topic] });
    assert.equal((await stored.request({ type: "login", user: "stored", topic: undefined })).users, 1);
    const all = [sse, stream, connected, subscribed, put, stored];
    for (const one of all) await one.are({ alice: 1, put: 1, stored: 1 });
    for (const one of all) {
      assert.equal(one.state.alice.metas[0].name, "A");
      assert.equal(one.lists, 1);
    }
    // Another subscribe brings the snapshot again.
    await subscribed.request({ type: "subscribe" });
    await until("the list comes again", () => subscribed.lists === 2);
    // Tag filters do not apply to presence notices.
    const tagged = await ws("", topic);
    await tagged.request({ type: "subscribe", tags: ["red"] });
    await disconnect(alice.socket);
    for (const one of [...all, tagged]) await one.are({ put: 1, stored: 1 });
    // SSE without JSON has only the snapshot.
    const plain = await listen(`/sse?topic=${topic}`);
    const list = JSON.parse(await plain.next("presence_state"));
    assert.deepEqual(Object.keys(list).sort(), ["put", "stored"]);
  },

  ws_commands: async () => {
    const topic = "room:ws";
    const alice = await ws("user=alice&user=bob", topic);
    assert.deepEqual(await alice.request({ type: "subscribe", meta: { name: "A", n: 1.5 } }), { topic });
    await alice.are({ alice: 1, bob: 1 });
    const { phx_ref: first, ...meta } = alice.state.alice.metas[0];
    assert.deepEqual(meta, { name: "A", n: 1.5 });
    const carol = await enter(LATEST, topic, "carol", { payload: { meta: { name: "C" } } });
    for (const { are } of [alice, carol.seen]) await are({ alice: 1, bob: 1, carol: 1 });
    assert.equal(carol.seen.users.alice[0].name, "A");
    assert.deepEqual(await alice.request({ type: "presence_update", meta: { typing: true } }), { topic });
    await until("the update is seen", () => carol.seen.users.alice[0].typing === true);
    assert.equal(carol.seen.users.alice[0].phx_ref_prev, first);
    assert.equal("name" in carol.seen.users.alice[0], false);
    await until("by itself as well", () => alice.state.alice.metas[0].typing === true);
    await alice.are({ alice: 1, bob: 1, carol: 1 });
    // Another subscribe may change the payload.
    await alice.request({ type: "subscribe", meta: { typing: false } });
    await until("the meta is seen", () => carol.seen.users.bob[0].typing === false);
    await alice.are({ alice: 1, bob: 1, carol: 1 });

    const snapshot = await alice.request({ type: "presence" });
    assert.deepEqual(snapshot, await presence(topic));
    assert.deepEqual([snapshot.users, snapshot.connections], [3, 3]);
    // A client outside of the topic may request the snapshot, as by GET /presence.
    const other = await ws("", "room:other");
    assert.deepEqual(await other.request({ type: "presence", topic }), snapshot);
    assert.deepEqual((await other.request({ type: "presence" })).presences, {});
    for (const [command, code] of [
      [{ type: "presence", topic: "plain:a" }, "no_presence"],
      [{ type: "presence", topic: "refused:a" }, "forbidden"],
      [{ type: "presence_update", topic: "plain:a", meta: {} }, "no_presence"],
      [{ type: "presence_update", meta: {} }, "not_subscribed"],
      [{ type: "presence_update" }, "bad_meta"],
      [{ type: "subscribe", meta: 7 }, "bad_meta"],
      [{ type: "subscribe", meta: { big: "x".repeat(2000) } }, "bad_meta"],
      [{ type: "presence_update", meta: [] }, "bad_meta"],
      [{ type: "subscribe" }, { topic: "room:other" }],
      [{ type: "presence_update", meta: {} }, "no_user"],
    ]) {
      assert.deepEqual(await other.request(command), code, JSON.stringify(command));
    }
    // In a topic without presence the payload has no effect and causes no error.
    const plain = { type: "subscribe", topic: "plain:a", meta: { a: 1 } };
    assert.deepEqual(await other.request(plain), { topic: "plain:a" });
    assert.deepEqual(await alice.request({ type: "unsubscribe" }), { topic });
    await carol.seen.are({ carol: 1 });
  },

  // Snapshots of a megabyte in all: they arrive one after the other, and completely.
  long_lists: async () => {
    const rooms = Array.from({ length: 12 }, (_, at) => `room:long-${at}`);
    const query = rooms.map((room) => `topic=${room}`).join("&");
    const crowd = [];
    for (let at = 0; at < 60; at += 1) {
      const member = await listenWs(`user=${at}`);
      crowd.push(member);
      for (const topic of rooms) {
        const meta = { at, pad: "x".repeat(900) };
        member.send({ type: "subscribe", id: 1, topic, meta });
      }
    }
    for (const room of rooms) await until(`${room} is full`, async () => (await presence(room)).users === 60);
    await until("all are announced", async () => {
      const lists = await Promise.all(rooms.map(presence));
      return lists.every(({ presences }) => Object.keys(presences).length === 60);
    });
    const later = await ws("", rooms[0]);
    const others = [follow(await listen(`/stream?${query}`), rooms[0])];
    const seen = new Set();
    const inbox = await listenWs("");
    const receive = inbox.receive.bind(inbox);
    inbox.receive = (event, message) => {
      if (event !== "presence_state") return receive(event, message);
      if (Object.keys(message.data).length === 60) seen.add(message.topic);
    };
    for (const topic of rooms) inbox.send({ type: "subscribe", id: 1, topic });
    await until("all lists have come", () => seen.size === rooms.length);
    await later.request({ type: "subscribe" });
    const all = Object.fromEntries(crowd.map((_, at) => [String(at), 1]));
    const sorted = Object.fromEntries(Object.entries(all).sort(([a], [b]) => (a < b ? -1 : 1)));
    for (const one of [later, ...others]) await one.are(sorted);
  },

  churn: async () => {
    const topic = "room:churn";
    const seed = Number(process.env.PRESENCE_SEED ?? 77);
    let state = seed;
    const random = (below) => {
      state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
      return Math.floor((state / 2 ** 32) * below);
    };
    try {
      const observer = await enter(LATEST, topic, "observer");
      const others = [
        follow(await listen(`/sse?format=json&topic=${topic}`), topic),
        follow(await listen(`/stream?topic=${topic}`), topic),
        await ws(`topic=${topic}`, topic),
      ];
      const there = [];
      for (let step = 0; step < 200; step += 1) {
        if (there.length && (there.length > 12 || random(2))) {
          const [one] = there.splice(random(there.length), 1);
          if (one.request) {
            await [() => one.request({ type: "unsubscribe" }), () => one.close()][random(2)]();
            continue;
          }
          const tcp = one.socket.conn._socket;
          // An abandoned long poll without a leave is present until its session ends.
          await [
            () => leave(one.channel),
            () => (tcp ? disconnect(one.socket) : leave(one.channel)),
            () => (tcp ? tcp.destroy() : leave(one.channel)),
          ][random(3)]();
          continue;
        }
        const user = `user${random(6)}`;
        if (random(3) === 0) {
          const seen = await ws(`user=${user}`, topic);
          await seen.request({ type: "subscribe", meta: { step } });
          if (random(2)) await seen.request({ type: "presence_update", meta: { again: step } });
          there.push({ seen, user, request: seen.request, close: seen.close });
          continue;
        }
        const transport = random(4) ? undefined : "longpoll";
        const kind = (transport ? POLLED : KINDS)[random(transport ? 2 : 4)];
        const one = await enter(kind, topic, user, { transport, reconnectAfterMs: () => 1e6 });
        there.push({ ...one, user });
      }
      const truth = { observer: 1 };
      for (const { user } of there) truth[user] = (truth[user] ?? 0) + 1;
      await observer.seen.are(truth);
      for (const { seen } of there) await seen.are(truth);
      const sorted = Object.fromEntries(Object.entries(truth).sort(([a], [b]) => (a < b ? -1 : 1)));
      for (const other of others) await other.are(sorted);
      const late = await enter(LATEST, topic, "observer");
      await late.seen.are({ ...truth, observer: 2 });
    } catch (error) {
      error.message = `PRESENCE_SEED=${seed}: ${error.message}`;
      throw error;
    }
  },
});
