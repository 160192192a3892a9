// A browser's tab that runs a page's snippets in its console, one JSON object a line on standard input.
"use strict";

const fs = require("node:fs");
const http = require("node:http");
const readline = require("node:readline");
const { createRequire } = require("node:module");

const packages = createRequire(`${process.cwd()}/`);
const { chromium } = packages("playwright-core");

const phoenix = fs.readFileSync(`${process.cwd()}/node_modules/phoenix/priv/static/phoenix.min.js`);
const PAGE = `<!doctype html><title>t</title><script src="/phoenix.js"></script><script>
console.log = (...values) =>
  report(values.map((value) => typeof value === "string" ? value : JSON.stringify(value)).join(" "));
</script>`;

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

// Replaces the import, as a bundler does: the page has the package's own build for browsers.
const imported = (js) => js.replace(/^import (\{[^}]*\}) from "phoenix";$/m, "const $1 = Phoenix;");

(async () => {
  const site = http.createServer((request, response) => {
    const script = request.url === "/phoenix.js";
    response.writeHead(200, { "Content-Type": script ? "text/javascript" : "text/html" });
    response.end(script ? phoenix : PAGE);
  });
  await new Promise((done) => site.listen(0, "127.0.0.1", done));
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic"],
  });
  const page = await browser.newPage();
  page.on("pageerror", (error) => say({ error: String(error) }));
  await page.exposeFunction("report", (text) => say({ log: text }));
  await page.goto(`http://127.0.0.1:${site.address().port}/`);
  const console = await page.context().newCDPSession(page);
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { js, end } = JSON.parse(line);
    if (end) break;
    const options = { expression: imported(js), replMode: true, awaitPromise: true };
    const { exceptionDetails } = await console.send("Runtime.evaluate", options);
    if (exceptionDetails) say({ error: exceptionDetails.exception?.description ?? exceptionDetails.text });
    say({ done: true });
  }
  await browser.close();
  process.exit(0);
})().catch((error) => {
  say({ error: String(error.stack) });
  process.exit(1);
});
