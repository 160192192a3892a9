// The shared parts of the recipes' applications: a page with its files, its own calls, and calls to Throng's API.
// Only node, no packages.
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join } from "node:path";
import { fileURLToPath } from "node:url";

/** The address for Throng's clients. The page gets it by `throng.js`. */
const THRONG = process.env.THRONG_URL ?? "http://127.0.0.1:8000";
/** The address of Throng's API, and the key if the server has one. */
const API = process.env.THRONG_API ?? "http://127.0.0.1:8001";
const API_KEY = process.env.THRONG_API_KEY;
const PORT = Number(process.env.PORT ?? 3000);

const BODY_BYTES_MAX = 64 * 1024;
/** How long a call is repeated while Throng restarts. */
const PATIENCE_MS = 60_000;
const CALL_MS = 10_000;
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css" };

const pause = ms => new Promise(done => setTimeout(done, ms));

/**
 * Calls Throng's API. Repeats a call that gets no response, or 503, for up to a minute; so a publish needs an
 * `idempotency_key` if it must not happen twice. Throws the API's error message.
 */
export async function call(path, body) {
  const headers = { "Content-Type": "application/json" };
  if (API_KEY) headers.Authorization = `Bearer ${API_KEY}`;
  for (const end = Date.now() + PATIENCE_MS; ; await pause(200)) {
    const signal = AbortSignal.timeout(CALL_MS);
    const options = { method: "POST", headers, body: JSON.stringify(body), signal };
    const response = await fetch(API + path, options).catch(error => error);
    const isLater = response instanceof Error || response.status === 503;
    if (isLater && Date.now() < end) continue;
    if (response instanceof Error) throw new Error(`${API} does not answer: is Throng running?`);
    const result = await response.json();
    if (!response.ok) throw new Error(`${path}: ${result.error.message}`);
    return result;
  }
}

async function bodyOf(request) {
  let text = "";
  // A piece may end in the middle of a character.
  request.setEncoding("utf8");
  for await (const piece of request) {
    text += piece;
    if (text.length > BODY_BYTES_MAX) throw new Error("too long");
  }
  return JSON.parse(text || "{}");
}

/**
 * Serves the files of the folder of `module` (its `import.meta.url`), and the application's own calls:
 * `calls["POST /ask"]` gets the request's JSON and returns the response's. `ready` gets the page's URL. Returns the
 * server, which emits `error` if it can't listen.
 */
export function serve(module, calls, ready = url => console.log(`Open ${url}`)) {
  const folder = fileURLToPath(new URL(".", module));
  const handle = async request => {
    const path = new URL(request.url, "http://page").pathname;
    const own = calls[`${request.method} ${path}`];
    // Pages of other sites can't read the response of a call, but without this they could make the call.
    if (own && request.headers["sec-fetch-site"] === "cross-site") return [];
    if (own) return [".json", JSON.stringify(await own(await bodyOf(request)))];
    if (path === "/throng.js") return [".js", `export const throng = ${JSON.stringify(THRONG)};`];
    const name = path === "/" ? "index.html" : path.slice(1);
    // Only the pages' own files, and nothing outside of the folder.
    if (request.method !== "GET" || !/^[a-z]+\.(html|js|css)$/.test(name)) return [];
    const shared = name === "page.css" ? new URL(name, import.meta.url) : join(folder, name);
    return [extname(name), await readFile(shared)];
  };
  const server = createServer(async (request, response) => {
    try {
      const [type, body] = await handle(request);
      if (!type) return response.writeHead(404).end();
      response.writeHead(200, { "Content-Type": TYPES[type] ?? "application/json", "Cache-Control": "no-store" });
      response.end(body);
    } catch (error) {
      response.writeHead(400, { "Content-Type": "application/json" });
      response.end(JSON.stringify({ error: error.message }));
    }
  });
  return server.listen(PORT, "127.0.0.1", () => ready(`http://127.0.0.1:${server.address().port}/`));
}
