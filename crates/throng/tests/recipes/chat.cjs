// The chat, through a reload and a restart of the server.
"use strict";

const { assert, run } = require("./lib.cjs");

run(["--demo"], null, {}, async ({ throng, open, url }) => {
  // Each user has a tab of the same browser, and each tab its own name.
  const tab = async (name) => {
    const page = await open(`?as=${name}#lobby`);
    await joined(page);
    return page;
  };
  const joined = (page) => page.waitForFunction(() => document.querySelector("main").dataset.state === "joined");
  const say = async (page, text) => {
    await page.fill("#text", text);
    await page.keyboard.press("Enter");
  };
  const texts = (page) => page.$$eval(".bubble", (all) => all.map((bubble) => bubble.textContent));
  const shows = (page, want) => page.waitForFunction((want) =>
    JSON.stringify([...document.querySelectorAll(".bubble")].map((bubble) => bubble.textContent)) === want, JSON.stringify(want))
    .catch(async (error) => assert.deepEqual(await texts(page), want, error.message));
  const alice = await tab("alice");
  await say(alice, "one");
  const bob = await tab("bob");
  // A later user sees earlier messages.
  await shows(bob, ["one"]);
  await say(bob, "two");
  await shows(alice, ["one", "two"]);

  await alice.reload();
  await joined(alice);
  await shows(alice, ["one", "two"]);
  await say(bob, "three");
  await shows(alice, ["one", "two", "three"]);

  // A message that is written while the server is away waits, and arrives once.
  await throng.down();
  await bob.waitForFunction(() => document.querySelector("main").dataset.state === "joining");
  await say(bob, "four");
  await throng.up();
  await shows(alice, ["one", "two", "three", "four"]);
  await bob.waitForFunction(() => [...document.querySelectorAll(".bubble-row")].every((row) => row.dataset.state !== "queued"));
  await shows(bob, ["one", "two", "three", "four"]);

  // Messages arrive for a user who was away.
  await alice.goto("about:blank");
  await say(bob, "five");
  await alice.goto(`${url}?as=alice#lobby`);
  await shows(alice, ["one", "two", "three", "four", "five"]);
  const carol = await tab("carol");
  await shows(carol, ["one", "two", "three", "four", "five"]);
}).catch((error) => { console.error(error); process.exit(1); });
