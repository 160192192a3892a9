// Publishes a message: node publish.mjs TOPIC TEXT

const API = process.env.THRONG_API ?? "http://127.0.0.1:8001";
const KEY = process.env.THRONG_API_KEY ?? "";

async function publish(topic, data) {
  const response = await fetch(`${API}/api/publish`, {
    method: "POST",
    headers: { Authorization: `Bearer ${KEY}` },
    body: JSON.stringify({ topic, data }),
    signal: AbortSignal.timeout(10_000),
  });
  if (!response.ok) throw new Error(await response.text());
  return (await response.json()).id;
}

console.log(await publish(process.argv[2], process.argv[3]));
