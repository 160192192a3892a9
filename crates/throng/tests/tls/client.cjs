// Listens to the topic news through TLS, and prints messages until the first one of the test arrives.
"use strict";

const fs = require("node:fs");
const https = require("node:https");

const [address, authority] = process.argv.slice(2);
const options = { ca: fs.readFileSync(authority), headers: { Accept: "text/event-stream" } };
https.get(`https://${address}/sse?topic=news`, options, (response) => {
  let text = "";
  response.on("data", (data) => {
    text += data;
    if (text.includes("hello")) {
      console.log(text);
      process.exit(0);
    }
  });
});
