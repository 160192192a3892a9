// mqtt.js in node, by TCP and by WebSocket. Arguments: the URLs.
"use strict";

const assert = require("node:assert");
const mqtt = require("mqtt");
const conversation = require("./conversation.cjs");

(async () => {
  for (const url of process.argv.slice(2)) {
    for (const protocolVersion of [3, 4, 5]) {
      await conversation(mqtt, assert, url, protocolVersion);
      console.log("ok", url, protocolVersion);
    }
  }
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
