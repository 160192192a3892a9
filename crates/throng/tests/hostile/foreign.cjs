// Pages in Chromium that post to the server: pages of other sites, by requests without a preflight, and pages that
// the server allows.
"use strict";

const path = require("node:path");
const packages = path.join(__dirname, "../phoenix");
const { assert, server, listen, publish, run } = require(`${packages}/lib.cjs`);
const { chromium } = require(`${packages}/node_modules/playwright-core`);

// Makes every kind of request that needs no preflight.
const simple = async ({ url, body }) => {
  const bodies = [body, new Blob([body]), new TextEncoder().encode(body), new URLSearchParams({ a: body })];
  const post = (body, type) =>
    fetch(url, { method: "POST", mode: "no-cors", body, headers: type ? { "Content-Type": type } : {} }).catch(() => {});
  for (const body of bodies) await post(body);
  for (const type of ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]) {
    await post(body, type);
  }
  navigator.sendBeacon(url, body);
  for (const enctype of ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded"]) {
    const form = document.createElement("form");
    Object.assign(form, { method: "post", action: url, target: "sink", enctype });
    const field = document.createElement("input");
    // A form of plain text can look like JSON: {"topic":"room:a","data":"evil","x":"="}
    [field.name, field.value] = [body.slice(0, -1) + ',"event":"e', '"}'];
    form.append(field);
    document.body.append(form);
    const loaded = new Promise((done) => document.querySelector("iframe").addEventListener("load", done, { once: true }));
    form.submit();
    await loaded;
  }
  // A request with a preflight, which the server rejects.
  await fetch(url, { method: "POST", body, headers: { "Content-Type": "application/json" } }).catch(() => {});
};

run({
  async pages() {
    // The two origins of one site, which the test serves: the server allows pages of "localhost".
    const foreign = `http://127.0.0.1:${server.port}/`;
    const allowed = `http://localhost:${server.port}/`;
    const browser = await chromium.launch({
      executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
      args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic"],
    });
    try {
      const page = await browser.newPage();
      const stream = await listen("/stream?topic=room:a");
      await stream.next("welcome");
      const client = `http://${server.client}`;
      await page.goto(foreign);
      const command = JSON.stringify({ topic: "room:a", data: "evil" });
      for (const call of ["publish", "batch", "broadcast", "disconnect"]) {
        await page.evaluate(simple, { url: `http://${server.admin}/api/${call}`, body: command });
      }
      await page.evaluate(simple, { url: `${client}/publish?topic=room:a`, body: command });
      const acks = JSON.stringify({ user: "al", id: "00000001:1" });
      await page.evaluate(simple, { url: `${client}/ack`, body: acks });
      // The allowed page works, and so do its requests.
      await page.goto(allowed);
      const statuses = await page.evaluate(async (client) => {
        const post = async (body, headers = {}) =>
          (await fetch(`${client}/publish?topic=room:a`, { method: "POST", body, headers })).status;
        return [
          await post("text"),
          await post('{"n":1}', { "Content-Type": "application/json", Authorization: "Bearer x", "X-Requested-With": "x" }),
          await post(new Blob(["blob"])),
        ];
      }, client);
      assert.deepEqual(statuses, [200, 200, 200]);
      await page.evaluate(simple, { url: `http://${server.admin}/api/publish`, body: command });
      await publish("room:a", "from the operator");
      const said = [];
      while (said.at(-1) !== "from the operator") said.push((await stream.next("message")).data);
      assert.deepEqual(said, ["text", { n: 1 }, "blob", "from the operator"]);
      assert.deepEqual(stream.events.filter(([event]) => event !== "heartbeat"), []);
    } finally {
      await browser.close();
    }
  },
});
