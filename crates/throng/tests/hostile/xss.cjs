// Names, presence metas and messages that would be scripts if a page inserted them as HTML.
"use strict";

const path = require("node:path");
const packages = path.join(__dirname, "../phoenix");
const { assert, LATEST, server, connect, join, publish, until, run } = require(`${packages}/lib.cjs`);
const { chromium } = require(`${packages}/node_modules/playwright-core`);

const EVIL = [
  '<img src=x onerror="pwned()">',
  '"><script>pwned()</script>',
  "<svg onload=pwned()>",
  "javascript:pwned()",
  "'-pwned()-'${pwned()}{{pwned()}}",
  '</title></textarea></style><iframe srcdoc="<script>parent.pwned()</script>">',
  '" onmouseover="pwned()" autofocus onfocus="pwned()" x="',
];

// Opens a browser, and runs `of` on a page with such content. Fails if a script has run.
async function browse(of) {
  const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
  const args = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic"];
  const browser = await chromium.launch({ executablePath, args });
  try {
    const page = await browser.newPage();
    const ran = [];
    await page.exposeFunction("pwned", () => ran.push("a script"));
    page.on("dialog", (dialog) => (ran.push(dialog.message()), dialog.dismiss()));
    page.on("pageerror", (error) => ran.push(`${error}`));
    const harmless = async () => {
      const found = await page.evaluate(() => {
        const bad = 'img[src="x"], svg[onload], iframe, script:not([src]), a[href^="javascript" i], [onerror], [onmouseover], [onfocus]';
        return [...document.querySelectorAll(bad)].map((node) => node.outerHTML.slice(0, 200));
      });
      assert.deepEqual([found, ran], [[], []]);
    };
    // The page shows the content as text.
    const shows = (text) =>
      page.waitForFunction(
        (text) => document.body.innerText.includes(text)
          || [...document.querySelectorAll("input, [title]")].some((node) => node.value === text || node.title === text),
        text,
        { timeout: 60000 },
      ).catch(async (error) => {
        throw new Error(`${page.url()} does not show ${text} but ${await page.evaluate(() => document.body.innerText)}: ${error}`);
      });
    await of(page, shows, harmless);
    await harmless();
  } finally {
    await browser.close();
  }
}

// Connects users with such names to topics with such names, and sends such messages.
async function fill(topics) {
  for (const topic of topics) {
    for (const user of EVIL) {
      const channel = await join(connect(LATEST, { user }), topic, { meta: { mood: user, [user]: user } });
      channel.push(user.slice(0, 60), { user, text: user, [user]: user });
      channel.push("message", { id: user, user, text: user });
    }
  }
}

run({
  async dashboard() {
    const topics = EVIL.slice(0, 3).map((evil) => `room:${evil}`);
    await fill(topics);
    for (const topic of topics) {
      await publish(topic, { [EVIL[0]]: EVIL }, { event: EVIL[2] });
      await publish(topic, EVIL[1], { event: EVIL[0] });
    }
    await browse(async (page, shows, harmless) => {
      const admin = `http://${server.admin}/`;
      await page.goto(admin);
      await shows(topics[0]);
      await harmless();
      for (const topic of topics) {
        await page.goto(`${admin}#/topic/${encodeURIComponent(topic)}`);
        await shows(topic);
        await shows(EVIL[0]);
        await harmless();
      }
      for (const user of EVIL) {
        await page.goto(`${admin}#/user/${encodeURIComponent(user)}`);
        await shows(user);
        await harmless();
        // The address of the page runs no script either.
        await page.goto(`${admin}#/${user}`);
        await harmless();
      }
      for (const view of ["config", "help", ""]) {
        await page.goto(`${admin}#/${view}`);
        await page.reload();
        await harmless();
      }
    });
  },

  async chat() {
    await browse(async (page, shows, harmless) => {
      await page.addInitScript(() => {
        localStorage.setItem("throng.name", JSON.stringify("<b>me</b>"));
      });
      await page.goto(`http://${server.client}/#lobby`);
      await until("the page has joined", async () => (await page.evaluate(() => document.body.innerText)).includes("lobby"));
      await fill(["room:lobby"]);
      for (const event of EVIL.slice(0, 3)) await publish("room:lobby", { text: event, [event]: [event] }, { event });
      for (const text of EVIL.slice(0, 3)) await shows(text);
      await harmless();
      for (const room of EVIL) {
        await page.goto(`http://${server.client}/#${encodeURIComponent(room)}`);
        await harmless();
      }
      await page.reload();
      await harmless();
    });
  },
});
