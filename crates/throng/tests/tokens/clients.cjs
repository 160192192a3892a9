// Third-party clients that send tokens: phoenix.js on both of its transports, and pages in Chromium.
"use strict";

const crypto = require("node:crypto");
const http = require("node:http");
const path = require("node:path");
const packages = path.join(__dirname, "../phoenix");
const lib = require(`${packages}/lib.cjs`);
const { assert, server, sleep, until, connect, tryJoin, join, push, publish, KINDS, POLLED, LATEST, run } = lib;

// Signs claims as an application does, without a library.
function token(claims) {
  const part = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");
  const text = `${part({ alg: "HS256", typ: "JWT" })}.${part(claims)}`;
  return `${text}.${crypto.createHmac("sha256", server.key).update(text).digest("base64url")}`;
}

const soon = (seconds) => Math.floor(Date.now() / 1000) + seconds;

// Runs an attempt that needs a token that expires soon. The attempt gets the time of expiry, and returns nothing if
// that time came too early: then it runs again with more time.
async function expiring(attempt) {
  for (const seconds of [4, 12, 36]) {
    const done = await attempt(soon(seconds));
    if (done) return done;
  }
  throw new Error("a token of 36 seconds expires before it is used");
}

const listener = (sub, more = {}) => token({ sub, throng: { subscribe: ["room:*"] }, ...more });

// Returns every way in which a client of this kind can send a token, on both transports.
function ways(kind, token) {
  const transports = POLLED.includes(kind) ? [undefined, "longpoll"] : [undefined];
  return transports.flatMap((transport) => {
    const all = [{ transport, params: { token } }];
    if (kind.name.startsWith("new")) all.push({ transport, authToken: token });
    return all;
  });
}

// Events of the topic `phoenix`, which belong to no channel.
function connectionEvents(socket) {
  const events = [];
  socket.onMessage(({ topic, event, payload }) => topic === "phoenix" && events.push({ event, payload }));
  return events;
}

async function inChromium(of) {
  const { chromium } = require(`${packages}/node_modules/playwright-core`);
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic"],
    timeout: 60000,
  });
  try {
    const page = await browser.newPage();
    page.setDefaultTimeout(60000);
    const requests = [];
    page.on("request", (request) => request.url().includes("/sse") && requests.push(request.url()));
    const answers = [];
    page.on("response", (answer) => answer.url().includes("/sse") && answers.push(answer.status()));
    await of({ page, requests, answers });
  } finally {
    await browser.close();
  }
}

// Opens an EventSource in the page, which records its events in `window.events`.
const open = ({ url, withCredentials }) => {
  window.events = [];
  window.source = new EventSource(url, { withCredentials });
  for (const name of ["open", "error", "message", "token_expiring"]) {
    window.source.addEventListener(name, ({ data }) => window.events.push([name, data ?? null]));
  }
};
const events = (page, name) => page.evaluate((name) => window.events.filter(([it]) => it === name), name);

const hasClosed = (page) => page.evaluate(() => window.source.readyState === EventSource.CLOSED);

// Checks the whole life of an EventSource: a warning, the end, one rejected reconnect, and silence. Returns false if
// the token expires before the page has got the earlier events.
async function livesAndDies({ page, requests, answers }, source, topic) {
  requests.length = answers.length = 0;
  await page.evaluate(open, source);
  const has = async (name) => (await events(page, name)).length > 0;
  for (const name of ["open", "message", "token_expiring"]) {
    if (name === "message") await publish(topic, "hello");
    await until(`it has heard ${name}`, async () => (await has(name)) || (await hasClosed(page)));
    if (!(await has(name))) return false;
  }
  const warnings = await events(page, "token_expiring");
  assert.equal(warnings.length, 1);
  assert.equal(JSON.parse(warnings[0][1]).type, "token_expiring");
  await until("it has given up", () => hasClosed(page));
  assert.deepEqual(answers, [200, 401]);
  // It would reconnect after a tenth of a second.
  await sleep(500);
  assert.equal(requests.length, 2, "it has asked again");
  return true;
}

run({
  async phoenix() {
    for (const kind of KINDS) {
      for (const way of ways(kind, listener("al"))) {
        const what = `${kind.name} ${Object.keys(way)} ${way.transport}`;
        const socket = connect(kind, way);
        const channel = await join(socket, "room:1");
        const refused = await tryJoin(socket, "other:1");
        assert.deepEqual(refused.reply, { status: "error", response: { reason: "unauthorized" } }, what);
        await publish("room:1", { text: what });
        const message = await channel.inbox.next("message");
        assert.equal(message.data?.text ?? message.text, what);
        socket.disconnect();
        await until("it is gone", async () => (await lib.members("room:1")) === 0);
      }
    }
  },

  async phoenix_without_a_token() {
    for (const transport of [undefined, "longpoll"]) {
      for (const params of [{}, { token: "x.y.z" }, { token: listener("al", { exp: 1 }) }, { user: "al" }]) {
        const socket = connect(LATEST, { transport, params, reconnectAfterMs: () => 60000 });
        let failed = false;
        socket.onError(() => (failed = true));
        await until("it is refused", () => failed);
        assert.equal(socket.isConnected(), false);
        socket.disconnect();
      }
    }
  },

  async phoenix_refresh() {
    await Promise.all(
      [undefined, "longpoll"].map(async (transport) => {
        const [user, topic] = [`al-${transport}`, `room:${transport}`];
        const authToken = listener(user, { exp: soon(300) });
        const socket = connect(LATEST, { transport, authToken, reconnectAfterMs: () => 60000 });
        const told = connectionEvents(socket);
        const channel = await join(socket, topic);
        const warnings = () => told.filter(({ event }) => event === "token_expiring");
        await until("it is warned", () => warnings().length === 1);
        const exp = soon(400);
        const answer = await push(channel, "access_token", { access_token: listener(user, { exp }) });
        assert.deepEqual(answer, { status: "ok", response: { users: [user], expires: exp } });
        const wrong = await push(channel, "access_token", { access_token: listener("bo") });
        assert.equal(wrong.status, "error");
        await until("it is warned again", () => warnings().length === 2);
        assert.equal(warnings()[1].payload.expires, exp);
        await publish(topic, { still: true });
        await channel.inbox.next("message");
        assert.equal(socket.closes.length, 0);
        const [end] = await expiring(async (exp) => {
          const { status } = await push(channel, "access_token", { access_token: listener(user, { exp }) });
          return status === "ok" && [exp];
        });
        const heard = () => transport || socket.closes.length > 0;
        await until("it is closed", () => !socket.isConnected() && heard());
        assert.ok(soon(0) >= end);
        if (!transport) assert.deepEqual(socket.closes, [4402]);
        socket.disconnect();
      }),
    );
  },

  async event_source_with_a_token_in_its_url() {
    await inChromium(async (tab) => {
      await tab.page.goto(`http://localhost:${server.port}/`);
      const source = (room, exp) => `http://${server.client}/sse?topic=${room}&token=${listener("al", { exp })}`;
      await expiring((exp) => livesAndDies(tab, { url: source("room:1", exp) }, "room:1"));
      // The page of docs/sse.md: a warned page opens a second EventSource, and the first message that comes on both
      // closes the old one.
      await tab.page.evaluate(
        ({ first, second }) => {
          window.shown = new Set();
          const listen = (url, old) => {
            const source = new EventSource(url);
            const onMessage = ({ lastEventId, data }) => {
              if (window.shown.has(lastEventId)) return old?.close();
              window.shown.add(lastEventId);
              window.heard.push(data);
            };
            source.onmessage = onMessage;
            source.addEventListener("token_expiring", () => listen(second, source), { once: true });
            if (old) {
              old.onmessage = onMessage;
              old.onerror = () => old.close();
              window.old = old;
            }
          };
          window.heard = [];
          listen(first);
        },
        { first: source("room:2", soon(500)), second: source("room:2", soon(3600)) },
      );
      await until("it listens", async () => (await lib.members("room:2")) > 0);
      let sent = 0;
      const send = async () => {
        await publish("room:2", `${sent++}`);
        await sleep(10);
      };
      await until("it has changed to the new one", async () => {
        await send();
        return tab.page.evaluate(() => window.old?.readyState === EventSource.CLOSED);
      });
      while ((await lib.members("room:2")) > 1) await send();
      for (let more = 0; more < 20; more++) await send();
      const all = [...Array(sent).keys()].map(String);
      await until("all have come", async () => (await tab.page.evaluate(() => window.heard.length)) === sent);
      // Messages on two connections have no common order.
      const heard = await tab.page.evaluate(() => window.heard);
      assert.deepEqual(heard.sort((a, b) => a - b), all);
    });
  },

  async event_source_with_a_cookie() {
    await inChromium(async (tab) => {
      const { page, answers } = tab;
      const url = `http://localhost:${new URL(`http://${server.client}`).port}/sse?topic=room:1`;
      const bring = (token) => page.context().addCookies([{ name: "throng_token", value: token, url }]);
      await page.goto(`http://localhost:${server.port}/`);
      // Without a cookie, and with a cookie that the page does not send.
      for (const withCredentials of [true, false]) {
        answers.length = 0;
        await page.evaluate(open, { url, withCredentials });
        await until("it has given up", () => hasClosed(page));
        assert.deepEqual(answers, [401]);
        await bring(listener("al", { exp: soon(3600) }));
      }
      await expiring(async (exp) => {
        await bring(listener("al", { exp }));
        return livesAndDies(tab, { url, withCredentials: true }, "room:1");
      });
      // A page of another origin to which the browser gives the cookie as well, since ports do not make another site.
      await bring(listener("al", { exp: soon(3600) }));
      const foreign = http.createServer((_, response) => response.end("<!doctype html>"));
      await new Promise((done) => foreign.listen(0, "127.0.0.1", done));
      await page.goto(`http://localhost:${foreign.address().port}/`);
      answers.length = 0;
      await page.evaluate(open, { url, withCredentials: true });
      await until("it is refused", () => hasClosed(page));
      assert.equal((await events(page, "open")).length, 0);
      // The same with a request whose response the page can't read.
      const ack = url.replace("/sse?topic=room:1", "/publish?topic=room:1");
      await page.evaluate(
        (ack) => fetch(ack, { method: "POST", mode: "no-cors", credentials: "include", body: "evil" }).catch(() => {}),
        ack,
      );
      // And with a WebSocket, for which browsers make no CORS check.
      const code = await page.evaluate(
        (url) =>
          new Promise((done) => {
            const socket = new WebSocket(url);
            socket.onopen = () => done("open");
            socket.onerror = () => done("error");
          }),
        url.replace("http:", "ws:").replace("/sse", "/ws"),
      );
      assert.equal(code, "error");
      foreign.close();
    });
  },

  async websocket_of_a_page() {
    await inChromium(async ({ page }) => {
      await page.goto(`http://localhost:${server.port}/`);
      const closed = (query) =>
        page.evaluate(
          (url) =>
            new Promise((done) => {
              const socket = new WebSocket(url);
              socket.onclose = ({ code, reason }) => done([code, reason]);
            }),
          `ws://${server.client}/ws?${query}`,
        );
      assert.deepEqual(await closed("token=x.y.z"), [4401, "invalid_token"]);
      assert.deepEqual(await closed(`token=${listener("al", { exp: 1 })}`), [4401, "token_expired"]);
      assert.deepEqual(await closed("topic=room:1"), [4401, "token_required"]);
      assert.deepEqual(await closed(`token=${listener("al")}&topic=other`), [4403, "not_granted"]);
      assert.deepEqual(await closed(`token=${listener("al")}&user=bo`), [4403, "not_your_user"]);
      const end = await expiring(async (exp) => {
        const [code, reason] = await closed(`token=${listener("al", { exp })}`);
        return code !== 4401 && [code, reason];
      });
      assert.deepEqual(end, [4402, "token_expired"]);
    });
  },
});
