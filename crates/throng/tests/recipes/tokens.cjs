// A response of the model, through a reload and a restart of the server.
"use strict";

const { EXAMPLES, assert, run } = require("./lib.cjs");

run(["--config", `${EXAMPLES}/tokens/throng.toml`], "tokens/model.mjs", { TOKEN_MS: "50" }, async ({ throng, open }) => {
  const page = await open();
  const text = (page) => page.textContent("#text");
  const grows = async (page, to) => page.waitForFunction((to) => document.getElementById("text").textContent.length >= to, to);
  await page.click("text=Ask >> nth=-1");
  // The server is stopped while the page loads, since the response must not end before.
  await grows(page, 60);
  throng.pause();
  const before = await text(page);
  await page.reload();
  throng.resume();
  await grows(page, before.length + 30);
  assert.ok((await text(page)).startsWith(before), "a reload shows it from the beginning");

  await throng.down();
  await page.waitForSelector("#link[data-state=wait]");
  const cut = await text(page);
  await throng.up();
  await grows(page, cut.length + 30);

  // A page that is opened later shows the whole response.
  const second = await page.context().newPage();
  await second.goto(page.url());
  for (const each of [page, second]) await each.waitForSelector("text=/^Done$/");
  const [first, other] = [await text(page), await text(second)];
  assert.equal(first, other);
  assert.match(first, /^You asked: “How does an answer survive a reload\?”\n\n[^]*as it is written\.$/);
  const words = first.match(/\s*\S+|\s+$/g);
  const id = new URL(page.url()).hash.slice(1);
  const history = await throng.api("GET", `/api/history/answer:${id}?limit=1000`);
  assert.deepEqual(history.messages.filter(({ event }) => event === "token").map(({ data }) => data), words);
}).catch((error) => { console.error(error); process.exit(1); });
