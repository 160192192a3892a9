// A conversation of mqtt.js with a broker, in node and in a browser's page.
"use strict";

async function conversation(mqtt, assert, url, protocolVersion) {
  // Each conversation has its own names, since sessions of other conversations retain messages of their topics.
  const name = `js-${protocolVersion}-${url.split(":")[0]}`;
  const open = async (clientId, clean, more) => {
    const properties = protocolVersion === 5 && !clean ? { sessionExpiryInterval: 100 } : undefined;
    const options = { clientId, clean, protocolVersion, username: "alice", password: "any", reconnectPeriod: 0, connectTimeout: 60000 };
    const protocolId = protocolVersion === 3 ? "MQIsdp" : "MQTT";
    const client = mqtt.connect(url, { ...options, protocolId, properties, ...more });
    const heard = [];
    const waiting = [];
    client.on("message", (topic, payload, packet) => {
      const message = { topic, payload: payload.toString(), packet };
      const first = waiting.shift();
      if (first) first(message);
      else heard.push(message);
    });
    const connack = await new Promise((done, failed) => {
      client.on("connect", done);
      client.on("error", failed);
    });
    const next = () => (heard.length ? heard.shift() : new Promise((done) => waiting.push(done)));
    return { client, next, sessionPresent: connack.sessionPresent };
  };
  const one = await open(name, true);
  await one.client.subscribeAsync("room/+", { qos: 2 });
  for (const qos of [0, 1, 2]) {
    await one.client.publishAsync("room/a", `qos ${qos}`, { qos });
    const message = await one.next();
    assert.equal(message.payload, `qos ${qos}`);
    assert.equal(message.packet.qos, qos);
  }
  await one.client.publishAsync("state/js", "kept", { qos: 1, retain: true });
  await one.client.subscribeAsync("state/#", { qos: 1 });
  const retained = await one.next();
  assert.equal(retained.payload, "kept");
  assert.equal(retained.packet.retain, true);
  await one.client.publishAsync("state/js", "", { qos: 1, retain: true });
  await one.next();
  let two = await open(`${name}-kept`, false);
  assert.equal(two.sessionPresent, false);
  await two.client.subscribeAsync(`away/${name}/#`, { qos: 1 });
  await two.client.endAsync();
  for (let at = 0; at < 10; at++) await one.client.publishAsync(`away/${name}/a`, `${at}`, { qos: 1 });
  two = await open(`${name}-kept`, false);
  // CONNACK of MQTT 3.1 has no such flag.
  if (protocolVersion > 3) assert.equal(two.sessionPresent, true);
  for (let at = 0; at < 10; at++) assert.equal((await two.next()).payload, `${at}`);
  await two.client.endAsync();
  if (protocolVersion === 5) {
    const properties = { contentType: "text/plain", userProperties: { a: "1" }, responseTopic: "answers/1" };
    await one.client.publishAsync("room/b", "said", { qos: 1, properties });
    const said = (await one.next()).packet.properties;
    assert.equal(said.contentType, "text/plain");
    assert.equal(said.userProperties.a, "1");
    assert.equal(said.responseTopic, "answers/1");
  }
  await one.client.endAsync();
}

if (typeof module !== "undefined") module.exports = conversation;
