// The chat, while another process replaces the server: the pages' WebSockets stay open, and everything that is typed
// before, during and after the upgrade arrives in both windows.
"use strict";

const { assert, run } = require("./lib.cjs");

// The maximum number of messages during one upgrade.
const MEANWHILE_MAX = 15;

/** Runs in each page: counts events of its WebSockets, and records the received texts. */
const watch = () => {
  const seen = (window.seen = { opened: 0, closed: 0, texts: [] });
  const Own = window.WebSocket;
  window.WebSocket = class extends Own {
    constructor(...args) {
      super(...args);
      this.addEventListener("open", () => (seen.opened += 1));
      this.addEventListener("close", () => (seen.closed += 1));
      this.addEventListener("message", ({ data }) => seen.texts.push(String(data)));
    }
  };
};

run(["--demo"], null, {}, async ({ throng, open }) => {
  const tab = async (name) => {
    const page = await open(`?as=${name}#lobby`);
    await page.waitForFunction(() => document.querySelector("main").dataset.state === "joined");
    return page;
  };
  const say = async (page, text) => {
    await page.fill("#text", text);
    await page.keyboard.press("Enter");
  };
  const texts = (page) => page.$$eval(".bubble", (all) => all.map((bubble) => bubble.textContent));
  const shows = (page, want) => page.waitForFunction((want) =>
    JSON.stringify([...document.querySelectorAll(".bubble")].map((bubble) => bubble.textContent)) === want, JSON.stringify(want))
    .catch(async (error) => assert.deepEqual(await texts(page), want, error.message));
  const arePresent = (page, count) => page.waitForFunction((text) =>
    document.querySelector("#room-sub").textContent === text, `${count} here`);

  const pages = [await tab("alice"), await tab("bob")];
  const said = [];
  const both = async (from, text) => {
    said.push(text);
    await say(pages[from], text);
    for (const page of pages) await shows(page, said);
  };
  await both(0, "before, by alice");
  await both(1, "before, by bob");
  for (const page of pages) await arePresent(page, 2);

  for (let round = 0; round < 3; round++) {
    let isOver = false;
    const upgrading = throng.upgrade().finally(() => (isOver = true));
    // A failure is thrown below.
    upgrading.catch(() => {});
    for (let number = 0; !isOver && number < MEANWHILE_MAX; number++) {
      await both(number % 2, `meanwhile ${round}.${number}`);
    }
    await upgrading;
    await both(0, `after ${round}, by alice`);
    await both(1, `after ${round}, by bob`);
  }

  // After carol's notice no earlier notices about the other two can arrive.
  await tab("carol");
  for (const page of pages) await arePresent(page, 3);
  for (const page of pages) {
    const { opened, closed, texts } = await page.evaluate(() => window.seen);
    assert.deepEqual({ opened, closed }, { opened: 1, closed: 0 });
    const states = await page.$$eval(".bubble-row", (all) => all.map((row) => row.dataset.state));
    assert.ok(states.every((state) => state !== "queued"), JSON.stringify(states));
    const changes = texts.filter((text) => text.includes("presence_diff")).map((text) => JSON.parse(text));
    // Each page is in several rooms.
    const users = (what) => changes.flatMap(([, , room, , change]) => Object.keys(change[what]).map((user) => `${room} ${user}`));
    assert.deepEqual(users("leaves"), []);
    assert.equal(new Set(users("joins")).size, users("joins").length, `who came: ${users("joins")}`);
  }
  // The new process has the history.
  const { messages } = await throng.api("GET", "/api/history/room%3Alobby?limit=1000");
  assert.equal(messages.length, said.length);
}, watch).catch((error) => { console.error(error); process.exit(1); });
