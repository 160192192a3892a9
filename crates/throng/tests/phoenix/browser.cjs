// Tabs of a browser with phoenix.js's build for browsers.
"use strict";

const fs = require("node:fs");
const http = require("node:http");
const { chromium } = require("playwright-core");
const { PATIENCE_MS, assert, LATEST, OK, connect, join, push, server, publish, run } = require("./lib.cjs");

const PAGE = `<!doctype html><title>t</title><script src="/phoenix.js"></script><script>
window.enter = (user, transport, options) => new Promise((done, failed) => {
  const { Socket, LongPoll, Presence } = Phoenix;
  const polled = transport === 'longpoll' ? { transport: LongPoll } : {};
  window.socket = new Socket('ws://THRONG/socket', { params: { user }, ...polled, ...options });
  socket.connect();
  window.received = [];
  window.channel = socket.channel('room:tabs', { meta: { transport } });
  for (const event of ['say', 'bin', 'message']) channel.on(event, payload => {
    received.push([event, payload instanceof ArrayBuffer ? [...new Uint8Array(payload)] : payload]);
  });
  window.presence = new Presence(channel);
  window.users = () => presence.list((user, { metas }) => user + metas.length).sort().join();
  channel.join().receive('ok', done).receive('error', failed);
});
window.say = payload => new Promise((done, failed) =>
  channel.push('say', payload).receive('ok', done).receive('error', failed));
</script>`;

async function pages() {
  const file = (name) => fs.readFileSync(require.resolve(name));
  const builds = {
    new: fs.readFileSync(`${__dirname}/node_modules/phoenix/priv/static/phoenix.min.js`),
    old: file("phoenix15"),
  };
  const site = http.createServer((request, response) => {
    // Each version has its own origin, so that the page needs no query.
    const build = request.headers.host.startsWith("localhost") ? builds.old : builds.new;
    const script = request.url === "/phoenix.js";
    response.writeHead(200, { "Content-Type": script ? "text/javascript" : "text/html" });
    response.end(script ? build : PAGE.replace("THRONG", server.client));
  });
  await new Promise((done) => site.listen(0, done));
  const { port } = site.address();
  return { new: `http://127.0.0.1:${port}/`, old: `http://localhost:${port}/` };
}

const launch = () =>
  chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    timeout: PATIENCE_MS,
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic"],
  });

run({
  tabs: async () => {
    const urls = await pages();
    const browser = await launch();
    try {
      const context = await browser.newContext();
      context.setDefaultTimeout(PATIENCE_MS);
      const tab = async (url, ...entrance) => {
        const page = await context.newPage();
        page.on("pageerror", (error) => assert.fail(`in the page: ${error}`));
        await page.goto(url);
        await page.evaluate((of) => enter(...of), entrance);
        return page;
      };
      const are = (page, want) => page.waitForFunction((want) => users() === want, want);
      const receives = (page, want) =>
        page.waitForFunction((want) => received.some((it) => JSON.stringify(it) === want), JSON.stringify(want));
      // A token is in the handshake or in a header, for which the browser sends a preflight first.
      const authToken = { authToken: "s3cret" };
      const [alice, bob, polled, old] = [
        await tab(urls.new, "alice", "websocket"),
        await tab(urls.new, "bob", "websocket", authToken),
        await tab(urls.new, "bob", "longpoll", authToken),
        await tab(urls.old, "carol", "longpoll"),
      ];
      const all = [alice, bob, polled, old];
      for (const page of all) await are(page, "alice1,bob2,carol1");
      for (const [at, page] of all.entries()) {
        await page.evaluate((at) => say({ at, text: "é" }), at);
        const said = { at, text: "é", phx_sender: ["alice", "bob", "bob", "carol"][at] };
        for (const other of all) await receives(other, ["say", said]);
      }
      await publish("room:tabs", "AQL/", { event: "bin", encoding: "base64" });
      for (const page of [alice, bob]) await receives(page, ["bin", [1, 2, 255]]);
      for (const page of [polled, old]) await receives(page, ["bin", { data: "AQL/", encoding: "base64" }]);
      assert.equal(await alice.evaluate(() => presence.state.bob.metas[0].transport), "websocket");

      // A closed tab sends no leave; its connection just ends.
      await bob.close();
      for (const page of [alice, polled, old]) await are(page, "alice1,bob1,carol1");
      await polled.evaluate(() => channel.leave());
      for (const page of [alice, old]) await are(page, "alice1,carol1");
      // The page is loaded again.
      await alice.reload();
      await are(await tab(urls.new, "dave", "websocket"), "carol1,dave1");
      await are(old, "carol1,dave1");
    } finally {
      await browser.close();
    }
  },

  // The page of examples/chat, as `--demo` serves it: it shows the sender that the server names.
  demo_chat: async () => {
    const browser = await launch();
    try {
      const tab = async (name) => {
        const context = await browser.newContext();
        context.setDefaultTimeout(PATIENCE_MS);
        const page = await context.newPage();
        page.on("pageerror", (error) => assert.fail(`in the page: ${error}`));
        await page.goto(`http://${server.client}/?as=${name}#lobby`);
        await page.waitForFunction(() => document.querySelector("main").dataset.state === "joined");
        return page;
      };
      const [alice, bob] = [await tab("alice"), await tab("bob")];
      const say = async (page, text) => {
        await page.fill("#text", text);
        await page.keyboard.press("Enter");
      };
      // Returns the author of the only bubble with this text.
      const author = (page, text) =>
        page.waitForFunction((text) => {
          const of = [...document.querySelectorAll(".bubble")].filter((it) => it.textContent === text);
          return of.length === 1 && of[0].closest(".group").querySelector("strong").textContent;
        }, text).then((found) => found.jsonValue());
      await say(alice, "hello");
      assert.equal(await author(bob, "hello"), "alice");
      assert.equal(await author(alice, "hello"), "You");
      await alice.waitForSelector('.bubble-row[data-state="sent"]');
      // A client that claims to be another user shows under its own name.
      const mallory = await join(connect(LATEST, { user: "mallory" }), "room:lobby");
      const forged = { id: "1", user: "alice", phx_sender: "alice", text: "send money" };
      assert.deepEqual(await push(mallory, "message", forged), OK);
      assert.equal(await author(bob, "send money"), "mallory");
      // The typing notice also shows the sender.
      const typing = await join(connect(LATEST, { user: "mallory" }), "typing:lobby");
      await push(typing, "typing", { user: "alice", phx_sender: "alice", on: true });
      await bob.waitForFunction(() => document.querySelector("#typing-text").textContent === "mallory is typing");
      // The application publishes as itself, and as a user.
      await publish("room:lobby", "maintenance at noon");
      await bob.waitForFunction(() => document.querySelector(".app-message strong")?.textContent === "Application");
      await publish("room:lobby", "from my phone", { sender: "alice" });
      assert.equal(await author(bob, "from my phone"), "alice");
    } finally {
      await browser.close();
    }
  },
});
