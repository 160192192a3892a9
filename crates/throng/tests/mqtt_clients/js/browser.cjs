// mqtt.js in a browser's page, by WebSocket. Argument: the URL.
"use strict";

const fs = require("node:fs");
const http = require("node:http");
// Playwright, from the packages of the Phoenix tests.
const { chromium } = require(`${__dirname}/../../phoenix/node_modules/playwright-core`);

const [url] = process.argv.slice(2);

(async () => {
  const files = {
    "/": "<!doctype html><title>t</title><script src=/mqtt.js></script><script src=/conversation.js></script>",
    "/mqtt.js": fs.readFileSync(`${__dirname}/node_modules/mqtt/dist/mqtt.min.js`),
    "/conversation.js": fs.readFileSync(`${__dirname}/conversation.cjs`),
  };
  const site = http.createServer((request, response) => {
    const type = request.url === "/" ? "text/html" : "text/javascript";
    response.writeHead(200, { "Content-Type": type });
    response.end(files[request.url] ?? "");
  });
  await new Promise((done) => site.listen(0, "127.0.0.1", done));
  const browser = await chromium.launch({
    timeout: 60000,
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic"],
  });
  try {
    const page = await browser.newPage();
    page.setDefaultTimeout(60000);
    await page.goto(`http://127.0.0.1:${site.address().port}/`);
    // MQTT 3.1, 3.1.1 and 5.0.
    for (const version of [3, 4, 5]) {
      await page.evaluate(
        ([url, version]) => {
          const equal = (found, wanted) => {
            if (found !== wanted) throw new Error(`${found} in place of ${wanted}`);
          };
          return conversation(mqtt, { equal }, url, version);
        },
        [url, version],
      );
      console.log("ok", version);
    }
  } finally {
    await browser.close();
    site.close();
  }
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
