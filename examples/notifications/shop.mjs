// A web shop that notifies its customers about their orders.
import { randomUUID } from "node:crypto";
import { call, serve } from "../application/application.mjs";

const STEP_MS = Number(process.env.STEP_MS ?? 3000);
const STEPS = ["Thank you for your order", "Your payment has arrived", "Your parcel is on its way"];
const CUSTOMER = /^[a-z]{1,20}$/;

/** Stands in for the steps of an order. The customer need not be online. */
async function follow(customer, order, product) {
  for (const [n, text] of STEPS.entries()) {
    // A repeated call does not send the message twice.
    const idempotency_key = `${order}/${n}`;
    await call("/api/send", { user: customer, data: { text, product, at: Date.now() }, idempotency_key });
    await new Promise(done => setTimeout(done, STEP_MS));
  }
}

serve(import.meta.url, {
  "POST /order": ({ customer, product }) => {
    if (!CUSTOMER.test(customer)) throw new Error("a customer is up to 20 letters from a to z");
    const order = randomUUID();
    follow(customer, order, String(product).slice(0, 40)).catch(error => console.error(error.message));
    return { order };
  },
  // The customer has opened the bell. All open pages of the customer get this message, and no history has it.
  "POST /read": async ({ customer, id }) => {
    if (!CUSTOMER.test(customer)) throw new Error("a customer is up to 20 letters from a to z");
    await call("/api/ack", { user: customer, id });
    await call("/api/send", { user: customer, event: "read", data: { upTo: id }, no_history: true });
    return {};
  },
});
