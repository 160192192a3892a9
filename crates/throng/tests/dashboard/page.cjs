// The dashboard in Chromium: signing in and out, the view of a key that may only read, pages of other sites, and
// foreign host names that resolve to this host.
"use strict";

const http = require("node:http");
const path = require("node:path");
const packages = path.join(__dirname, "../phoenix");
const { PATIENCE_MS, assert, server, run } = require(`${packages}/lib.cjs`);
const { chromium } = require(`${packages}/node_modules/playwright-core`);

// `server` is filled before a scenario runs.
const port = () => server.admin.split(":")[1];
const home = () => `http://${server.admin}/`;

async function inBrowser(work) {
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    timeout: PATIENCE_MS,
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic",
      "--host-resolver-rules=MAP *.example 127.0.0.1"],
  });
  try {
    const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
    const page = await context.newPage();
    context.setDefaultTimeout(PATIENCE_MS);
    await work(page, context);
  } finally {
    await browser.close();
  }
}

async function signIn(page, key) {
  await page.waitForSelector("#key-dialog[open]");
  await page.fill("#key", key);
  await page.click("#key-submit");
}

const signedIn = (page, name) => page.waitForFunction(
  (name) => !document.getElementById("caller").hidden && document.getElementById("caller-name").textContent === name, name);

const isLive = (page) => page.waitForSelector('#state[data-state="live"]');

async function until(is, what) {
  const end = Date.now() + PATIENCE_MS;
  while (!(await is())) {
    if (Date.now() > end) assert.fail(`waited in vain until ${what}`);
    await new Promise((done) => setTimeout(done, 100));
  }
}

// Makes a call as the page would, with the headers that a browser adds.
const fetched = (page, url, options) => page.evaluate(async ([url, options]) => {
  try {
    return (await fetch(url, options)).status;
  } catch {
    return 0;
  }
}, [url, options]);

run({
  async sign_in() {
    await inBrowser(async (page, context) => {
      await page.goto(home());
      await signIn(page, "not a key");
      await page.waitForSelector("#key-error:not([hidden])");
      assert.match(await page.textContent("#key-error"), /not an API key/);
      if (server.shots) await page.screenshot({ path: `${server.shots}/sign-in.png` });
      await signIn(page, server.read);
      await signedIn(page, "ops");
      await isLive(page);
      assert.equal(await page.isVisible("#key-dialog"), false);
      assert.equal(await page.isVisible("#caller-reads"), true);

      // The page stores the key nowhere, and no script can read the session's cookie.
      const held = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie,
        [...document.querySelectorAll("input")].map((input) => input.value)]));
      assert.ok(!held.includes(server.read) && !held.includes("session"), held);
      const [cookie] = await context.cookies();
      assert.equal(cookie.name, `throng_session_${port()}`);
      assert.deepEqual([cookie.httpOnly, cookie.sameSite, cookie.path], [true, "Strict", "/"]);
      assert.ok(!cookie.value.includes(server.read));

      // The session survives a reload, and also covers links.
      await page.reload();
      await signedIn(page, "ops");
      await isLive(page);
      await page.goto(`${home()}api/stats`);
      assert.match(await page.textContent("body"), /"connections"/);

      // Buttons that change something are disabled, with the reason.
      await page.goto(`${home()}#/user/al`);
      await signedIn(page, "ops");
      await page.waitForSelector("td.end button:disabled");
      const reason = await page.getAttribute("td.end button", "title");
      assert.match(reason, /“ops”.*scope admin/);
      assert.equal(await page.isDisabled("button.danger"), true);
      assert.equal(await page.isDisabled("form.stack:not(#key-form) button.primary"), true);
      assert.match(await page.textContent("form.stack:not(#key-form) .answer"), /publish:… or admin/);
      if (server.shots) await page.screenshot({ path: `${server.shots}/read-only.png`, fullPage: true });
      // The server also rejects the request if a user enables the button.
      const own = { method: "POST", headers: { "X-Throng-Session": "1" }, body: '{"user":"al"}' };
      assert.equal(await fetched(page, "/api/disconnect", own), 403);

      await page.click("#sign-out");
      await page.waitForSelector("#key-dialog[open]");
      assert.deepEqual(await context.cookies(), []);
      await page.goto(home());
      await signIn(page, server.all);
      await signedIn(page, "root");
      assert.equal(await page.isVisible("#caller-reads"), false);
      await page.goto(`${home()}#/user/al`);
      await page.waitForSelector("td.end button:enabled");
      const form = "form.stack:not(#key-form)";
      await page.click(`${form} button.primary`);
      await page.waitForFunction(() => /^Sent as .*, to 1 connection\.$/.test(document.querySelector("form.stack:not(#key-form) .answer").textContent));
      if (server.shots) {
        await page.goto(`${home()}#/`);
        await isLive(page);
        await page.waitForTimeout(3000);
        await page.screenshot({ path: `${server.shots}/admin.png` });
      }
    });
  },

  async mqtt() {
    await inBrowser(async (page, context) => {
      await page.goto(`${home()}#/mqtt`);
      await signIn(page, server.read);
      await signedIn(page, "ops");
      const rows = (card) => page.$$eval(`section:has(h2:text("${card}")) tbody tr th`, (cells) => cells.map((cell) => cell.textContent));
      const has = (card, want) => until(async () => (await rows(card)).join() === want.join(), `${card}: ${want}`);
      await has("Sessions", ["away", "here/<1>"]);
      await has("Retained messages", ["state/a", "state/b"]);
      assert.equal(await page.$$eval(".mqtt td.end button:enabled", (found) => found.length), 0);
      assert.match(await page.getAttribute(".mqtt td.end button", "title"), /“ops”.*scope admin/);
      // A client's subscriptions and a message's data show as text.
      const inDialog = async (button) => {
        await page.click(button);
        const text = await page.textContent("dialog:not(#key-dialog)[open]");
        await page.keyboard.press("Escape");
        await page.waitForSelector("dialog:not(#key-dialog)", { state: "detached" });
        return text;
      };
      const filters = await inDialog('button[aria-label="2 subscriptions of here/<1>"]');
      assert.match(filters, /here\/<1>.*news\/\+QoS 1.*state\/#QoS 2/);
      assert.match(await inDialog('button[aria-label^="Show the message of state/a"]'), /<b>on<\/b>/);
      // Selects one of several sessions, by the beginning of its identifier, and by its state.
      await page.fill('input[aria-label="Client identifier begins with"]', "he");
      await has("Sessions", ["here/<1>"]);
      await page.fill('input[aria-label="Client identifier begins with"]', "");
      await page.selectOption('select[aria-label="Which sessions"]', "false");
      await has("Sessions", ["away"]);
      await page.fill('input[aria-label="Filter of MQTT"]', "+/b");
      await has("Retained messages", ["state/b"]);
      if (server.shots) await page.screenshot({ path: `${server.shots}/mqtt.png`, fullPage: true });

      await page.click("#sign-out");
      await page.waitForSelector("#key-dialog[open]");
      await page.goto(`${home()}#/mqtt`);
      await signIn(page, server.all);
      await signedIn(page, "root");
      await has("Sessions", ["away", "here/<1>"]);
      const sure = (button) => page.click(button).then(() => page.click("dialog[open] button.danger"));
      await sure('button[aria-label="End the session of here/<1>"]');
      await has("Sessions", ["away"]);
      await sure('button[aria-label="End the session of away"]');
      await has("Sessions", []);
      await sure('button[aria-label="Delete the message of state/a"]');
      await has("Retained messages", ["state/b"]);
    });
  },

  // The test makes the kernel drop attempts to connect when it reads this line.
  async kernel() {
    await inBrowser(async (page) => {
      await page.goto(home());
      await isLive(page);
      const shoot = async (name) => {
        if (!server.shots) return;
        for (const [theme, width] of [["light", 1280], ["dark", 1280], ["dark", 390]]) {
          const dark = theme === "dark";
          if ((await page.getAttribute("html", "data-theme") === "dark") !== dark) await page.click("#theme");
          await page.setViewportSize({ width, height: 800 });
          await page.waitForTimeout(300);
          await page.screenshot({ path: `${server.shots}/kernel-${name}-${theme}-${width}.png`, fullPage: true });
        }
        await page.setViewportSize({ width: 1280, height: 800 });
      };
      await page.waitForSelector(".kernel .figures dd:not(:empty)");
      assert.match(await page.textContent(".kernel .figures"), /Connects dropped.*Retransmitted.*TCP buffers.*Open files/);
      // Other programs of the machine may have caused findings.
      await page.waitForFunction(() => document.querySelector(".findings li") ||
        /^Nothing was dropped and nothing ran short in the last /.test(document.querySelector(".kernel .empty").textContent));
      await shoot("healthy");
      console.log("looked");
      await page.waitForFunction(() => /queue was full\. Raise net\.core\.somaxconn, which is .* ago$/.test(
        [...document.querySelectorAll(".findings li")].map((row) => row.textContent).find((text) => text.includes("queue"))));
      assert.equal(await page.textContent(".kernel .empty"), "See the top of the page.");
      await shoot("dropped");
    });
  },

  // The test removes the key when it reads this line.
  async taken_away() {
    await inBrowser(async (page) => {
      await page.goto(home());
      await signIn(page, server.read);
      await signedIn(page, "ops");
      await isLive(page);
      console.log("signed in");
      await page.waitForSelector("#key-dialog[open]");
      assert.match(await page.textContent("#key-error"), /session has ended/);
    });
  },

  // A browser also sends the cookie from pages of the same host at another port.
  async other_sites() {
    const site = http.createServer((_, response) => {
      response.writeHead(200, { "Content-Type": "text/html" });
      response.end("<!doctype html><title>t</title><iframe name=sink></iframe>");
    });
    await new Promise((done) => site.listen(0, "127.0.0.1", done));
    await inBrowser(async (page, context) => {
      await page.goto(home());
      await signIn(page, server.all);
      await signedIn(page, "root");
      const foreign = await context.newPage();
      const seen = [];
      foreign.on("response", (response) => seen.push([response.request().method(), response.status()]));
      await foreign.goto(`http://127.0.0.1:${site.address().port}/`);
      seen.length = 0;
      const body = JSON.stringify({ topic: "news", data: "evil" });
      const sent = { method: "POST", mode: "no-cors", credentials: "include", body };
      await fetched(foreign, `${home()}api/publish`, sent);
      await fetched(foreign, `${home()}api/stats`, { mode: "no-cors", credentials: "include" });
      await foreign.evaluate(([action, body]) => {
        const form = document.createElement("form");
        Object.assign(form, { method: "post", action, target: "sink", enctype: "text/plain" });
        const field = document.createElement("input");
        [field.name, field.value] = [body.slice(0, -1) + ',"event":"e', '"}'];
        form.append(field);
        document.body.append(form);
        form.submit();
      }, [`${home()}api/publish`, body]);
      const posts = () => seen.filter(([method]) => method === "POST");
      await until(() => posts().length === 2, "both posts are answered");
      // The browser shows no response to the GET, and may not report one.
      assert.deepEqual(posts(), [["POST", 403], ["POST", 403]]);
      assert.ok(seen.every(([, status]) => status === 403), JSON.stringify(seen));
      // The same request from the node's own page succeeds.
      const own = { method: "POST", headers: { "X-Throng-Session": "1" }, body };
      assert.equal(await fetched(page, "/api/publish", own), 200);
      // It fails without the header that a form can't send.
      assert.equal(await fetched(page, "/api/publish", { method: "POST", body }), 403);
    });
    site.close();
  },

  // Any host name may resolve to this node, and under such a name no user can sign in.
  async other_names() {
    await inBrowser(async (page, context) => {
      await page.goto(`http://evil.example:${port()}/`);
      await signIn(page, server.read);
      await page.waitForSelector("#key-error:not([hidden])");
      assert.match(await page.textContent("#key-error"), /admin\.hosts/);
      assert.deepEqual(await context.cookies(), []);
      await page.goto(`http://throng.example:${port()}/`);
      await signIn(page, server.read);
      await signedIn(page, "ops");
      await isLive(page);
    });
  },

  // Node `b` was killed, and the outbox has rejected one of two rows.
  async cluster() {
    await inBrowser(async (page) => {
      await page.goto(home());
      await isLive(page);
      const shows = (title, name, words, warns) => page.waitForFunction(([title, name, words, warns]) => {
        const cards = [...document.querySelectorAll("section.card:not([hidden])")];
        const card = cards.find((card) => card.querySelector("h2").textContent === title);
        const lines = [...(card?.querySelectorAll("dl div") ?? [])];
        const value = lines.find((line) => line.querySelector("dt").textContent.startsWith(name))?.querySelector("dd");
        return value?.textContent.startsWith(words) && warns === Boolean(value.querySelector("svg"));
      }, [title, name, words, warns]);
      await shows("Nodes", "a (this one)", "0 connections", false);
      await shows("Nodes", "b", "silent for", true);
      await shows("Nodes", "NATS", "connected for", false);
      await shows("Nodes", "Lost", "nothing", false);
      await shows("Outbox", "PostgreSQL", "connected for", false);
      await shows("Outbox", "Drained by", "this node", false);
      await shows("Outbox", "Oldest row", "none", false);
      await shows("Outbox", "Published", "1", false);
      await shows("Outbox", "Refused", "1", true);
      if (server.shots) await page.screenshot({ path: `${server.shots}/cluster.png`, fullPage: true });
    });
  },
});
