// The chat over a plain WebSocket, through a reload, a restart of the server, and a close for good.
"use strict";

const { EXAMPLES, assert, run } = require("./lib.cjs");

run(["--config", `${EXAMPLES}/ws-chat/throng.toml`], "ws-chat/index.html", {}, async ({ throng, open }) => {
  const tab = async (name) => {
    const page = await open(`&as=${name}`);
    await live(page);
    return page;
  };
  const live = (page) => page.waitForSelector("#link[data-state=live]");
  const say = async (page, text) => {
    await page.fill("#text", text);
    await page.keyboard.press("Enter");
  };
  const lines = (page) => page.$$eval("#log li", (all) =>
    all.map((line) => `${line.dataset.state} ${line.children[0].textContent}: ${line.children[1].textContent}`));
  const shows = async (page, want) => {
    const said = want.map((line) => `said ${line}`);
    await page.waitForFunction((want) => JSON.stringify([...document.querySelectorAll("#log li")].map((line) =>
      `${line.dataset.state} ${line.children[0].textContent}: ${line.children[1].textContent}`)) === want, JSON.stringify(said))
      .catch(async (error) => assert.deepEqual(await lines(page), said, error.message));
  };
  const here = (page, want) => page.waitForFunction((want) => document.getElementById("here").textContent === want, want);

  const alice = await tab("alice");
  await say(alice, "one");
  const bob = await tab("bob");
  await shows(bob, ["alice: one"]);
  await here(alice, "alice, bob");
  await here(bob, "alice, bob");
  await say(bob, "<b>two</b>");
  const three = ["alice: one", "bob: <b>two</b>"];
  await shows(alice, three);
  await throng.api("POST", "/api/publish", { topic: "room:lobby", data: { text: "three" } });
  three.push("the app: three");
  await shows(bob, three);

  // After a reload the log has the original times.
  const times = (page) => page.$$eval("#log time", (all) => all.map((time) => Date.parse(time.dateTime)));
  await bob.waitForTimeout(1_000);
  const before = Date.now() - 500;
  await alice.reload();
  await live(alice);
  await shows(alice, three);
  assert.ok((await times(alice)).every((time) => time < before), "the times of the arrival");
  await here(bob, "alice, bob");

  // A user with two tabs is present until the last one is closed.
  const again = await tab("alice");
  await again.close();
  const carol = await tab("carol");
  await here(bob, "alice, bob, carol");
  await carol.close();
  await here(bob, "alice, bob");

  // A message that is written while the server is away waits, and arrives once.
  await throng.down();
  await bob.waitForSelector("#link[data-state=wait]");
  await say(bob, "four");
  assert.equal((await lines(bob)).at(-1), "sending bob: four");
  await throng.up();
  const four = [...three, "bob: four"];
  await shows(alice, four);
  await shows(bob, four);
  await here(alice, "alice, bob");

  // A publish is repeated as if its reply had been lost, and shows once.
  await bob.evaluate(() => {
    const [id] = [...lines.keys()].slice(-1);
    return send(id, "four");
  });
  await say(alice, "five");
  await shows(bob, [...four, "alice: five"]);
  await shows(alice, [...four, "alice: five"]);

  // A connection that the application closes stays closed.
  await throng.api("POST", "/api/disconnect", { user: "alice" });
  await alice.waitForFunction(() => document.getElementById("link").textContent.includes("4000"));
  await here(bob, "bob");

  // A server without its earlier store has other positions.
  await throng.down();
  throng.forget();
  await throng.up();
  await shows(bob, []);
  await say(bob, "six");
  await shows(bob, ["bob: six"]);
}).catch((error) => { console.error(error); process.exit(1); });
