// An application that replies to questions with a language model: each reply is a topic, each token a message. The
// request with the question ends at once, and the reply goes on whether clients listen or not.
import { randomUUID } from "node:crypto";
import { call, serve } from "../application/application.mjs";

const TOKEN_MS = Number(process.env.TOKEN_MS ?? 40);

/** Stands in for your model: put its client's stream of tokens here. */
async function* generate(question) {
  const text = `You asked: “${question}”\n\nThis text comes a token at a time, from a program that stands in ` +
    "for a language model. Reload the page in the middle of it, and it is there from the beginning and goes on. " +
    "Cut the network or restart the server, and it continues where it stopped, with no token lost and none twice.\n\n" +
    "Each answer is a topic with history. The page listens from the start of the topic; after a cut the browser " +
    "names the last message that it had, and gets what came after it.\n\n" +
    "Open the page's address in a second window: both show the same answer, as it is written.";
  for (const token of text.match(/\s*\S+|\s+$/g)) {
    await new Promise(done => setTimeout(done, TOKEN_MS));
    yield token;
  }
}

async function reply(topic, question) {
  let n = 0;
  // A repeated call does not publish the token twice: the key identifies it.
  const publish = (event, data) => call("/api/publish", { topic, event, data, idempotency_key: `${topic}/${n++}` });
  try {
    for await (const token of generate(question)) await publish("token", token);
    await publish("done", "");
  } catch (error) {
    console.error(`${topic}: ${error.message}`);
    await publish("failed", "The model stopped in the middle of its answer.");
  }
}

serve(import.meta.url, {
  "POST /ask": ({ question }) => {
    if (typeof question !== "string" || !question.trim()) throw new Error("question is missing");
    const id = randomUUID();
    reply(`answer:${id}`, question.trim()).catch(error => console.error(error.message));
    return { id };
  },
});
