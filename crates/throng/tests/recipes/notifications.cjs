// The bell, through a reload and a restart of the server.
"use strict";

const { EXAMPLES, assert, run } = require("./lib.cjs");

run(["--config", `${EXAMPLES}/notifications/throng.toml`], "notifications/shop.mjs", { STEP_MS: "300" }, async ({ throng, open }) => {
  const page = await open("?user=alice");
  const unread = (page, count) => page.waitForFunction((count) =>
    Number(document.getElementById("count").textContent) === count && document.querySelectorAll(".unread").length === count, count);
  const items = (page, count) => page.waitForFunction((count) => document.querySelectorAll("#list li").length === count, count);
  await page.click("[data-product=Lantern]");
  await unread(page, 3);

  // Unread notifications wait: for a reload, another device, and a restart of the server.
  await page.reload();
  await unread(page, 3);
  const phone = await open("?user=alice");
  await unread(phone, 3);
  await throng.down();
  await page.waitForSelector("#link[data-state=wait]");
  // The shop's notifications arrive when the server is back.
  await page.click("[data-product='Tea pot']");
  await throng.up();
  for (const each of [page, phone]) await unread(each, 6);

  // Opening the bell acknowledges them, on both devices.
  await page.click("#bell");
  for (const each of [page, phone]) await unread(each, 0);
  await page.reload();
  await items(page, 6);
  await unread(page, 0);
  await throng.down();
  await throng.up();
  const later = await open("?user=alice");
  await items(later, 6);
  await unread(later, 0);
  assert.deepEqual(await later.$$eval("#list strong", (texts) => texts.slice(0, 2).map((text) => text.textContent)),
    ["Your parcel is on its way", "Your payment has arrived"]);
  const stranger = await open("?user=bob");
  await stranger.waitForSelector("#link[data-state=live]");
  await items(stranger, 0);
  await page.click("#bell");
}).catch((error) => { console.error(error); process.exit(1); });
