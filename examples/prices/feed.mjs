// An application with a board of prices: publishes each change under the key of its row.
import { call, serve } from "../application/application.mjs";

const TOPIC = "prices:market";
const CHANGE_MS = Number(process.env.CHANGE_MS ?? 250);
const rows = new Map(Object.entries({
  Wheat: 231.5, Coffee: 388.2, Sugar: 19.43, Cotton: 70.18, Copper: 9871, Silver: 34.02, Timber: 566, Wool: 1219,
}));

/** Random prices stand in for your own source of changes. */
async function run() {
  const publish = (key, data) => call("/api/publish", { topic: TOPIC, key, data });
  for (const [name, price] of rows) await publish(name, { price });
  for (;;) {
    await new Promise(done => setTimeout(done, CHANGE_MS));
    const name = [...rows.keys()][Math.floor(Math.random() * rows.size)];
    const price = Number((rows.get(name) * (1 + (Math.random() - 0.5) / 50)).toPrecision(5));
    rows.set(name, price);
    await publish(name, { price });
  }
}

serve(import.meta.url, {
  // `null` removes a row from the board, for later clients as well.
  "POST /remove": async ({ name }) => {
    if (rows.size > 1 && rows.delete(name)) await call("/api/publish", { topic: TOPIC, key: name, data: null });
    return { rows: rows.size };
  },
});
run().catch(error => { console.error(error.message); process.exit(1); });
