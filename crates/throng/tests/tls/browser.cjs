// A page that came by TLS listens to the topic news by an EventSource and by a WebSocket, and prints the first
// message of each.
"use strict";

const { createRequire } = require("node:module");

const packages = createRequire(`${process.cwd()}/`);
const { chromium } = packages("playwright-core");
const [address] = process.argv.slice(2);

(async () => {
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
  });
  // The browser does not know the test's certificate authority.
  const context = await browser.newContext({ ignoreHTTPSErrors: true });
  const page = await context.newPage();
  await page.goto(`https://${address}/healthz`);
  const texts = await page.evaluate(() => {
    const events = new Promise((done) => {
      new EventSource("/sse?topic=news").onmessage = (event) => done(`EventSource ${event.data}`);
    });
    const socket = new WebSocket(`wss://${location.host}/ws?topic=news`);
    const frames = new Promise((done) => {
      socket.onmessage = (event) => {
        const { type, data } = JSON.parse(event.data);
        if (type === "message") done(`WebSocket ${data}`);
      };
    });
    return Promise.all([events, frames]);
  });
  texts.forEach((text) => console.log(text));
  await browser.close();
})();
