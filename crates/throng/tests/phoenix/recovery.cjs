// Recovery of missed messages. The id of a message is the second argument of `channel.on`'s callback,
// and a join resumes with `since`.
"use strict";

const http = require("node:http");
const { chromium } = require("playwright-core");
const {
  PATIENCE_MS, assert, KINDS, POLLED, OK, Inbox, connect, tryJoin, join, push, leave, api, publish, members, each, server,
  report, readInput, until, run,
} = require("./lib.cjs");

// All clients over WebSocket, and also over long poll if they support it.
const ALL = [
  ...KINDS,
  ...POLLED.map((kind) => ({ ...kind, name: `${kind.name}-polled`, transport: "longpoll" })),
];
const open = (kind, more) => connect(kind, { transport: kind.transport, ...more });

const ELSEWHERE = "00000001:3";

// Joins and collects the data and the id of each message.
async function follow(socket, topic, payload) {
  const channel = socket.channel(topic, payload);
  const received = { channel, all: [], ids: [], joins: [] };
  channel.on("message", ({ n }, ref) => (received.all.push(n), received.ids.push(ref)));
  channel.join().receive("ok", (response) => received.joins.push(response));
  await until(`${topic} is joined`, () => received.joins.length);
  return received;
}

const count = async (topic, from, to) => {
  const ids = [];
  for (let n = from; n < to; n++) ids.push((await publish(topic, { n })).id);
  return ids;
};
const range = (from, to) => Array.from({ length: to - from }, (_, at) => from + at);
const came = async (received, want) => {
  await until(`${want} came, not ${received.all}`, () => received.all.length >= want.length);
  assert.deepEqual(received.all, want);
};

// The application's part is a payload function, which the client calls for each join and rejoin.
function follower(kind, user, topic) {
  const socket = open(kind, { user });
  let last = "";
  const channel = socket.channel(topic, () => ({ since: last }));
  const received = { socket, channel, all: [], joins: [] };
  channel.on("message", ({ n }, ref) => {
    received.all.push(n);
    last = ref;
  });
  channel.join().receive("ok", (response) => {
    received.joins.push(response);
    // Before the first message, the position is that of the join's reply.
    last ||= response.since;
  });
  return received;
}

// A page with only an EventSource.
async function page() {
  const html = `<!doctype html><script>
    window.received = [];
    const query = 'topic=h:first&topic=plain&topic=h:page';
    const source = new EventSource('http://${server.client}/sse?' + query);
    source.onmessage = ({ data }) => received.push(data);
    source.addEventListener('recovery', ({ data }) => received.push(JSON.parse(data).recovered));
  </script>`;
  const site = http.createServer((_, response) => {
    response.writeHead(200, { "Content-Type": "text/html" });
    response.end(html);
  });
  await new Promise((done) => site.listen(0, "127.0.0.1", done));
  return `http://127.0.0.1:${site.address().port}/`;
}

run({
  positions: () =>
    each(ALL, async (kind) => {
      const topic = `h:${kind.name}`;
      const first = await follow(open(kind), topic, {});
      assert.match(first.joins[0].since, /^[0-9a-f]{8}:\d+$/);
      assert.equal(first.joins[0].recovered, undefined);
      const ids = await count(topic, 0, 5);
      await came(first, range(0, 5));
      assert.deepEqual(first.ids, ids);
      for (const [at, since] of ids.entries()) {
        const back = await follow(open(kind), topic, { since });
        assert.equal(back.joins[0].recovered, true);
        const live = await count(topic, 5 + at, 6 + at);
        await came(back, range(at + 1, 6 + at));
        assert.equal(back.ids.at(-1), live[0]);
        // The client leaves and joins again on the same connection.
        await leave(back.channel);
        const again = await follow(back.channel.socket, topic, { since: ids[at] });
        await came(again, range(at + 1, 6 + at));
        back.channel.socket.disconnect();
      }
    }),

  what_is_there: () =>
    each(ALL, async (kind) => {
      const topic = `h:there-${kind.name}`;
      await count(topic, 0, 8);
      for (const [since, from] of [["start", 0], ["last:3", 5], ["last:1000", 0]]) {
        const received = await follow(open(kind), topic, { since });
        assert.equal(received.joins[0].recovered, true);
        await came(received, range(from, 8));
        received.channel.socket.disconnect();
      }
      // The application chooses where the client begins. A rejoin continues at the client's position.
      const user = `there-${kind.name}`;
      const socket = open(kind, { user });
      let last = "start";
      const all = [];
      const channel = socket.channel(topic, () => ({ since: last }));
      channel.on("message", ({ n }, ref) => (all.push(n), (last = ref)));
      channel.join();
      await until("all came", () => all.length === 8);
      if (kind.name !== "old-v2-polled") {
        await api("disconnect", { user });
        await count(topic, 8, 11);
        await until("the rest came", () => all.length === 11);
        assert.deepEqual(all, range(0, 11));
      }
      const small = `small:there-${kind.name}`;
      await count(small, 0, 6);
      const received = await follow(open(kind), small, { since: "start" });
      await came(received, [3, 4, 5]);
      assert.equal(received.joins[0].recovered, true);
      const bad = await tryJoin(open(kind), `h:bad-${kind.name}`, { since: "last:1001" });
      assert.equal(bad.reply.status, "error");
      assert.match(bad.reply.response.reason, /last:N/);
      const plain = await tryJoin(open(kind), `plain:there-${kind.name}`, { since: "start" });
      assert.deepEqual(plain.reply.response, { recovered: false, reason: "no_history" });
    }),

  // A compacted topic: each message is the state of a key, which is in the payload.
  states: () =>
    each(ALL, async (kind) => {
      const topic = `cp:${kind.name}`;
      const own = await join(open(kind), topic);
      assert.deepEqual(await own.inbox.next("state_complete"), { type: "state_complete", topic });
      assert.deepEqual(await push(own, "set", { phx_key: "kitchen", on: true }), OK);
      assert.deepEqual(await push(own, "set", { phx_key: "hall", on: true, phx_x: 1 }), OK);
      assert.deepEqual(await push(own, "set", { on: false, phx_key: "kitchen" }), OK);
      assert.deepEqual(await own.inbox.next("set"), { on: true, phx_key: "kitchen" });
      assert.deepEqual(await own.inbox.next("set"), { on: true, phx_x: 1, phx_key: "hall" });
      assert.deepEqual(await own.inbox.next("set"), { on: false, phx_key: "kitchen" });
      // A publisher can't set the fields that the server adds.
      await publish(topic, { phx_key: "hall", on: 1 }, { key: "door", event: "set" });
      assert.deepEqual(await own.inbox.next("set"), { on: 1, phx_key: "door" });
      await publish(topic, "AP8=", { key: "bytes", event: "set", encoding: "base64" });
      const bytes = { data: "AP8=", encoding: "base64", phx_key: "bytes" };
      assert.deepEqual(await own.inbox.next("set"), bytes);
      // A removal has the same form in both directions.
      assert.deepEqual(await push(own, "set", { phx_key: "hall", data: null }), OK);
      assert.deepEqual(await own.inbox.next("set"), { data: null, phx_key: "hall" });
      const late = await join(open(kind), topic);
      const events = () => late.inbox.events.map(([event]) => event);
      await until("the state is complete", () => events().includes("state_complete"));
      const order = events().filter((event) => !event.startsWith("presence_"));
      assert.deepEqual(order, ["set", "set", "set", "state_complete"]);
      const state = late.inbox.all("set");
      assert.deepEqual(state, [{ on: false, phx_key: "kitchen" }, { on: 1, phx_key: "door" }, bytes]);
      // A client that joins with a position gets the messages since then, and the marker again.
      for (const since of ["start", "last:1"]) {
        const again = await join(open(kind), topic, { since });
        await again.inbox.next("state_complete");
        assert.deepEqual(again.inbox.all("set"), state);
        assert.equal(again.reply.response.recovered, true);
      }
      for (const payload of [{ on: true }, { phx_key: 7 }, { phx_key: "" }, { phx_key: null }]) {
        const { status, response } = await push(own, "set", payload);
        assert.equal(status, "error");
        assert.match(response.reason, /phx_key/);
      }
    }),

  // A page of a topic's history has the same form as in the API.
  pages: () =>
    each(ALL, async (kind) => {
      const topic = `h:pages-${kind.name}`;
      const ids = await count(topic, 0, 12);
      const channel = await join(open(kind), topic);
      const request = async (payload) => {
        const { status, response } = await push(channel, "history", payload);
        assert.equal(status, "ok", JSON.stringify(response));
        return response;
      };
      for (const [payload, query] of [
        [{}, ""],
        [{ limit: 5 }, "limit=5"],
        [{ since: ids[3], limit: 2 }, `since=${ids[3]}&limit=2`],
        [{ since: "last:4" }, "since=last:4"],
        [{ reverse: true, limit: 3 }, "reverse=true&limit=3"],
      ]) {
        // `last` is the newest id of all topics, which differs each time.
        const { last: _, ...want } = await api(`history/${topic}?${query}`);
        const { last, ...got } = await request(payload);
        assert.match(last, /^[0-9a-f]{8}:\d+$/);
        assert.deepEqual(got, want, query);
      }
      // Reads backwards from the newest message, as a user scrolls up.
      const all = [];
      for (let since; ; ) {
        const page = await request({ reverse: true, limit: 5, since });
        all.push(...page.messages.map(({ data }) => data.n));
        if (!page.more) break;
        since = page.next;
      }
      assert.deepEqual(all, range(0, 12).reverse());
      // Many requests at once, which all get a reply.
      const many = await Promise.all(range(0, 10).map((at) => request({ since: ids[at], limit: 1 })));
      assert.deepEqual(many.map(({ messages }) => messages[0].data.n), range(1, 11));
      for (const payload of [{ limit: 0 }, { limit: "5" }, { since: "x" }, { since: ELSEWHERE }]) {
        const { status, response } = await push(channel, "history", payload);
        assert.equal(status, "error");
        assert.ok(response.reason, JSON.stringify(payload));
      }
      const plain = await join(open(kind), `plain:${kind.name}`);
      const refused = await push(plain, "history", {});
      assert.equal(refused.status, "error");
      assert.match(refused.response.reason, /history_messages_max/);
      // Messages to a user, by the user's own channel.
      const user = `pages-${kind.name}`;
      await api("send", { user, data: { n: 1 } });
      const own = await join(open(kind, { user }), `@${user}`);
      const inbox = await push(own, "history", {});
      assert.deepEqual(inbox.response.messages.map(({ data }) => data), [{ n: 1 }]);
    }),

  lost: () =>
    each(ALL, async (kind) => {
      const socket = open(kind);
      const reason = async (topic, since) => {
        const { status, response } = (await tryJoin(socket, topic, { since })).reply;
        assert.equal(status, "ok");
        assert.equal(response.recovered, false);
        return response.reason;
      };
      const small = `small:${kind.name}`;
      const ids = await count(small, 0, 6);
      assert.equal(await reason(small, ids[1]), "too_old");
      assert.equal(await reason(`h:lost-${kind.name}`, ELSEWHERE), "epoch_changed");
      assert.equal(await reason(`plain:${kind.name}`, ids[1]), "no_history");
      const bad = await tryJoin(socket, `h:bad-${kind.name}`, { since: "yesterday" });
      assert.equal(bad.reply.status, "error");
      assert.match(bad.reply.response.reason, /since/);
    }),

  // The client rejoins by itself, with the payload that the application returns then. An old client that polls
  // silently accepts a new session, and does not rejoin in it.
  cut: () =>
    each(ALL.filter(({ name }) => name !== "old-v2-polled"), async (kind) => {
      const topic = `h:cut-${kind.name}`;
      const user = `user-${kind.name}`;
      const received = follower(kind, user, topic);
      await until("it is joined", () => received.joins.length === 1);
      for (let round = 0; round < 6; round++) {
        await count(topic, round * 6, round * 6 + 3);
        await api("disconnect", { user });
        await count(topic, round * 6 + 3, round * 6 + 6);
        await until("it is joined again", () => received.joins.length >= round + 2);
      }
      await came(received, range(0, 36));
      assert.ok(received.joins.slice(1).every(({ recovered }) => recovered), JSON.stringify(received.joins));
    }),

  // Another server uses the same store.
  restart: async () => {
    const all = ALL.map((kind) => [kind, `h:again-${kind.name}`]);
    const received = all.map(([kind, topic]) => follower(kind, `user-${kind.name}`, topic));
    await until("all are joined", () => received.every(({ joins }) => joins.length === 1));
    for (const [, topic] of all) await count(topic, 0, 3);
    report("published");
    await readInput();
    for (const [, topic] of all) await count(topic, 3, 6);
    for (const each of received) {
      await came(each, range(0, 6));
      assert.equal(each.joins.at(-1).recovered, true);
    }
  },

  tags: () =>
    each(ALL, async (kind) => {
      const topic = `h:tags-${kind.name}`;
      const user = `tagged-${kind.name}`;
      const red = (n, tags) => publish(topic, { n }, { tags });
      const { id } = await red(0, []);
      await red(1, ["red"]);
      await red(2, ["blue"]);
      const received = await follow(open(kind, { user }), topic, { since: id, tags: ["red"] });
      const inbox = new Inbox();
      received.channel.socket.onMessage(({ event, payload }) => inbox.receive(event, payload));
      await red(3, ["blue"]);
      await red(4, ["blue", "red"]);
      await came(received, [1, 4]);
      await api("send", { user, event: "mail", data: { to: user } });
      assert.deepEqual(await inbox.next("mail"), { to: user });
      const bad = await tryJoin(received.channel.socket, `${topic}-bad`, { tags: [1] });
      assert.equal(bad.reply.status, "error");
    }),

  acknowledgements: () =>
    each(ALL, async (kind) => {
      const topic = `w:${kind.name}`;
      const user = `acks-${kind.name}`;
      const received = await follow(open(kind, { user }), topic, {});
      await count(topic, 0, 8);
      await came(received, range(0, 3));
      // The reply comes after everything that was sent before.
      await push(received.channel, "history", { limit: 1 });
      await came(received, range(0, 3));
      const ack = (of, id) => push(of.channel, "ack", { id });
      assert.deepEqual(await ack(received, received.ids[2]), {
        status: "ok",
        response: { topic, acknowledged: received.ids[2] },
      });
      await came(received, range(0, 6));
      assert.equal((await ack(received, ELSEWHERE)).status, "error");
      assert.equal((await ack(received, "x")).status, "error");
      assert.equal((await ack(received, received.ids[2].replace(/\d+$/, "999999999"))).status, "error");
      // The connection is cut while three messages are unacknowledged.
      received.channel.socket.disconnect();
      const again = await follow(open(kind, { user }), topic, {});
      await came(again, range(3, 6));
      await ack(again, again.ids[2]);
      await came(again, range(3, 8));

      // The topic with the user's name has messages that wait for the user.
      const mail = `mail-${kind.name}`;
      const sent = [];
      for (const n of [0, 1, 2]) sent.push((await api("send", { user: mail, data: { n } })).id);
      const own = await follow(open(kind, { user: mail }), `@${mail}`, {});
      await came(own, range(0, 3));
      assert.deepEqual(own.ids, sent);
      // If the rule has redelivery, a client whose handler failed gets a message again with the same id. Otherwise an
      // open page gets it once.
      const drop = `drop:${kind.name}`;
      const worker = await follow(open(kind, { user }), drop, {});
      const [id] = await count(drop, 0, 1);
      await came(worker, [0, 0]);
      assert.deepEqual(worker.ids, [id, id]);
      await came(own, range(0, 3));
      assert.equal((await ack(own, sent[1])).status, "ok");
      own.channel.socket.disconnect();
      const rest = await follow(open(kind, { user: mail }), `@${mail}`, {});
      await came(rest, [2]);
      // In a topic without acknowledgements an event of this name is an ordinary event.
      const plain = await join(open(kind), `plain:${kind.name}`);
      assert.equal((await push(plain, "ack", { id: ELSEWHERE })).status, "error");
    }),

  // The server stops and comes back, and then cuts the browser off while messages flow.
  event_source: async () => {
    const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
    const browser = await chromium.launch({
      executablePath,
      timeout: PATIENCE_MS,
      args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic"],
    });
    try {
      const tab = await browser.newPage();
      tab.setDefaultTimeout(PATIENCE_MS);
      await tab.goto(await page());
      const here = () => until("the page listens", async () => (await members("h:first")) === 1);
      const want = [];
      const both = async (n) => {
        for (const topic of ["h:first", "h:page"]) {
          want.push(`${topic} ${n}`);
          await publish(topic, `${topic} ${n}`);
        }
      };
      await here();
      await both(0);
      await publish("plain", "plain 0");
      want.push("plain 0");
      await both(1);
      const receives = (want) => tab.waitForFunction((want) => received.length === want, want.length);
      await receives(want);
      report("received");
      await readInput();
      // One topic has no history, and the server reports that.
      want.push(false);
      await both(2);
      await receives(want);
      for (let round = 3; round < 8; round++) {
        await here();
        const { connections } = await api("topics/h:first/members");
        await api("disconnect", { connection: connections[0].id });
        want.push(false);
        await both(round);
        await receives(want);
      }
      const got = await tab.evaluate(() => received);
      // The position in the recovery event depends on the time of the reconnect.
      const messages = (list) => list.filter((it) => it !== false).sort();
      assert.deepEqual(messages(got), messages(want));
      const of = (list, topic) => list.filter((it) => String(it).startsWith(topic));
      for (const topic of ["h:first", "h:page"]) assert.deepEqual(of(got, topic), of(want, topic));
    } finally {
      await browser.close();
    }
  },
});
