// The board, through a reload and a restart of the server.
"use strict";

const { EXAMPLES, assert, run } = require("./lib.cjs");

run(["--config", `${EXAMPLES}/prices/throng.toml`], "prices/feed.mjs", { CHANGE_MS: "50" }, async ({ throng, open, url }) => {
  const page = await open();
  const names = (page) => page.$$eval("#rows th", (cells) => cells.map((cell) => cell.textContent));
  const shown = (page) => page.$$eval("#rows td", (cells) => cells.map((cell) => cell.textContent).join());
  const changes = async (page) => {
    const before = await shown(page);
    await page.waitForFunction((before) => [...document.querySelectorAll("#rows td")].map((cell) => cell.textContent).join() !== before, before);
  };
  const whole = (page, rows) => page.waitForFunction((rows) =>
    document.querySelector("table[data-complete]") && document.querySelectorAll("#rows tr").length === rows, rows);
  await whole(page, 8);
  assert.deepEqual(await names(page), ["Coffee", "Copper", "Cotton", "Silver", "Sugar", "Timber", "Wheat", "Wool"]);
  await changes(page);

  await page.reload();
  await whole(page, 8);
  await changes(page);

  await throng.down();
  await page.waitForSelector("#link[data-state=wait]");
  await throng.up();
  await page.waitForSelector("#link[data-state=live]");
  await changes(page);

  // A removed row disappears from the open page, and a new page does not get it.
  await fetch(`${url}remove`, { method: "POST", body: JSON.stringify({ name: "Wool" }) });
  await whole(page, 7);
  const second = await open();
  await whole(second, 7);
  assert.deepEqual(await names(second), await names(page));
}).catch((error) => { console.error(error); process.exit(1); });
