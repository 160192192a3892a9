// What was missed: the id of a message is the second argument of `channel.on`'s callback, and a join
// says with `since` what it saw last.
"use strict";

const http = require("node:http");
const { chromium } = require("playwright-core");
const {
  assert, KINDS, POLLED, Ear, connect, tryJoin, join, push, leave, api, publish, members, each, sleep,
  server, tell, told, until, run,
} = require("./lib.cjs");

// All clients over WebSocket, and those that can over long poll.
const ALL = [
  ...KINDS,
  ...POLLED.map((kind) => ({ ...kind, name: `${kind.name}-polled`, transport: "longpoll" })),
];
const open = (kind, more) => connect(kind, { transport: kind.transport, ...more });

const ELSEWHERE = "00000001:3";

// Joins and keeps the data and the id of each message.
async function follow(socket, topic, payload) {
  const channel = socket.channel(topic, payload);
  const heard = { channel, all: [], ids: [], joins: [] };
  channel.on("message", ({ n }, ref) => (heard.all.push(n), heard.ids.push(ref)));
  channel.join().receive("ok", (response) => heard.joins.push(response));
  await until(`${topic} is joined`, () => heard.joins.length);
  return heard;
}

const count = async (topic, from, to) => {
  const ids = [];
  for (let n = from; n < to; n++) ids.push((await publish(topic, { n })).id);
  return ids;
};
const range = (from, to) => Array.from({ length: to - from }, (_, at) => from + at);
const came = async (heard, want) => {
  await until(`${want} came, not ${heard.all}`, () => heard.all.length >= want.length);
  assert.deepEqual(heard.all, want);
};

// The application's part of it is a payload that is asked for with each join, also by itself.
function follower(kind, user, topic) {
  const socket = open(kind, { user });
  let last = "";
  const channel = socket.channel(topic, () => ({ since: last }));
  const heard = { socket, channel, all: [], joins: [] };
  channel.on("message", ({ n }, ref) => {
    heard.all.push(n);
    last = ref;
  });
  channel.join().receive("ok", (response) => {
    heard.joins.push(response);
    // Before the first message the place is that of the join.
    last ||= response.since;
  });
  return heard;
}

// A page with an EventSource and nothing else.
async function page() {
  const html = `<!doctype html><script>
    window.heard = [];
    const query = 'topic=h:first&topic=plain&topic=h:page';
    const source = new EventSource('http://${server.client}/sse?' + query);
    source.onmessage = ({ data }) => heard.push(data);
    source.addEventListener('recovery', ({ data }) => heard.push(JSON.parse(data).recovered));
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
        // What is left and entered again on the same connection.
        await leave(back.channel);
        const again = await follow(back.channel.socket, topic, { since: ids[at] });
        await came(again, range(at + 1, 6 + at));
        back.channel.socket.disconnect();
      }
    }),

  lost: () =>
    each(ALL, async (kind) => {
      const socket = open(kind);
      const reason = async (topic, since) => {
        const { status, response } = (await tryJoin(socket, topic, { since })).answer;
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
      assert.equal(bad.answer.status, "error");
      assert.match(bad.answer.response.reason, /since/);
    }),

  // Rejoins are the client's own, with the payload that the application gives then. An old client
  // that polls takes a new session without a word, and doesn't join again in it.
  cut: () =>
    each(ALL.filter(({ name }) => name !== "old-v2-polled"), async (kind) => {
      const topic = `h:cut-${kind.name}`;
      const user = `user-${kind.name}`;
      const heard = follower(kind, user, topic);
      await until("it is joined", () => heard.joins.length === 1);
      for (let round = 0; round < 6; round++) {
        await count(topic, round * 6, round * 6 + 3);
        await api("disconnect", { user });
        await count(topic, round * 6 + 3, round * 6 + 6);
        await until("it is joined again", () => heard.joins.length >= round + 2);
      }
      await came(heard, range(0, 36));
      assert.ok(heard.joins.slice(1).every(({ recovered }) => recovered), JSON.stringify(heard.joins));
    }),

  // The server is another, and the store is the same.
  restart: async () => {
    const all = ALL.map((kind) => [kind, `h:again-${kind.name}`]);
    const heard = all.map(([kind, topic]) => follower(kind, `user-${kind.name}`, topic));
    await until("all are joined", () => heard.every(({ joins }) => joins.length === 1));
    for (const [, topic] of all) await count(topic, 0, 3);
    tell("published");
    await told();
    for (const [, topic] of all) await count(topic, 3, 6);
    for (const each of heard) {
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
      const heard = await follow(open(kind, { user }), topic, { since: id, tags: ["red"] });
      const ear = new Ear();
      heard.channel.socket.onMessage(({ event, payload }) => ear.hear(event, payload));
      await red(3, ["blue"]);
      await red(4, ["blue", "red"]);
      await came(heard, [1, 4]);
      await api("send", { user, event: "mail", data: { to: user } });
      assert.deepEqual(await ear.next("mail"), { to: user });
      const bad = await tryJoin(heard.channel.socket, `${topic}-bad`, { tags: [1] });
      assert.equal(bad.answer.status, "error");
    }),

  acknowledgements: () =>
    each(ALL, async (kind) => {
      const topic = `w:${kind.name}`;
      const user = `acks-${kind.name}`;
      const heard = await follow(open(kind, { user }), topic, {});
      await count(topic, 0, 8);
      await came(heard, range(0, 3));
      await sleep(200);
      await came(heard, range(0, 3));
      const ack = (of, id) => push(of.channel, "ack", { id });
      assert.deepEqual(await ack(heard, heard.ids[2]), {
        status: "ok",
        response: { topic, acknowledged: heard.ids[2] },
      });
      await came(heard, range(0, 6));
      assert.equal((await ack(heard, ELSEWHERE)).status, "error");
      assert.equal((await ack(heard, "x")).status, "error");
      assert.equal((await ack(heard, heard.ids[2].replace(/\d+$/, "999999999"))).status, "error");
      // Cut off with three that were not acknowledged.
      heard.channel.socket.disconnect();
      const again = await follow(open(kind, { user }), topic, {});
      await came(again, range(3, 6));
      await ack(again, again.ids[2]);
      await came(again, range(3, 8));

      // What waits for the user, in the topic of the own name.
      const mail = `mail-${kind.name}`;
      const sent = [];
      for (const n of [0, 1, 2]) sent.push((await api("send", { user: mail, data: { n } })).id);
      const own = await follow(open(kind, { user: mail }), `@${mail}`, {});
      await came(own, range(0, 3));
      assert.deepEqual(own.ids, sent);
      // Where the rule says so, a client whose handler failed is given a message again, as the same
      // one; elsewhere an open page is given it once.
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
      // A topic whose messages nobody acknowledges has an event of this name like any other.
      const plain = await join(open(kind), `plain:${kind.name}`);
      assert.equal((await push(plain, "ack", { id: ELSEWHERE })).status, "error");
    }),

  // The server stops and comes back, and then cuts the browser off while messages flow.
  event_source: async () => {
    const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
    const browser = await chromium.launch({
      executablePath,
      args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic"],
    });
    try {
      const tab = await browser.newPage();
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
      const hears = (want) => tab.waitForFunction((want) => heard.length === want, want.length);
      await hears(want);
      tell("heard");
      await told();
      // Of one topic nothing is kept, and that is said.
      want.push(false);
      await both(2);
      await hears(want);
      for (let round = 3; round < 8; round++) {
        await here();
        const { connections } = await api("topics/h:first/members");
        await api("disconnect", { connection: connections[0].id });
        want.push(false);
        await both(round);
        await hears(want);
      }
      const got = await tab.evaluate(() => heard);
      // Where it was told of its recovery depends on when it came back.
      const messages = (list) => list.filter((it) => it !== false).sort();
      assert.deepEqual(messages(got), messages(want));
      const of = (list, topic) => list.filter((it) => String(it).startsWith(topic));
      for (const topic of ["h:first", "h:page"]) assert.deepEqual(of(got, topic), of(want, topic));
    } finally {
      await browser.close();
    }
  },
});
