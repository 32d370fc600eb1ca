// The form: what would become of a pasted request, now.

import { $, badge, bar, h, swatch, table } from "./dom.js";
import { ask } from "./source.js";
import { REASONS, hue, percent, whole } from "./words.js";

const PREFIX = "x-kvring-asked-";

export function listenExplain(placeOf) {
  $("explain").addEventListener("submit", async (event) => {
    event.preventDefault();
    const target = $("explained");
    try {
      const path = encodeURIComponent($("explain-path").value);
      const options = { method: "POST", body: $("explain-body").value, headers: { "content-type": "application/json", ...given() } };
      draw(target, await ask(`api/explain?path=${path}`, options), placeOf);
    } catch (error) {
      target.replaceChildren(h("p", { class: "problem" }, `No answer: ${error.message}`));
    }
  });
}

function given() {
  const found = {};
  for (const line of $("explain-headers").value.split("\n")) {
    const colon = line.indexOf(":");
    const name = line.slice(0, colon).trim().toLowerCase();
    if (colon < 1) continue;
    if (!/^[a-z0-9-]+$/.test(name)) throw new Error(`no header is named ${name}`);
    found[PREFIX + name] = line.slice(colon + 1).trim();
  }
  return found;
}

function draw(target, told, placeOf) {
  if (told.steering === "hash") return drawHash(target, told);
  const facts = [
    ["Goes to", [swatch(hue(placeOf(told.pool, told.choice))), `${told.choice} (${told.address}) `, badge(told.reason.replace("_", " "), REASONS[told.reason]?.[0]), ` ${REASONS[told.reason]?.[1] ?? ""}`]],
    ["Pool, policy", `${told.pool}, ${told.policy}`],
    ...read(told),
    ["Ring order", told.ring.length ? told.ring.join(" › ") : "–"],
    ["Bound", `${whole(told.bound)} ${told.bound_on}`],
  ];
  target.replaceChildren(
    ...now(facts),
    h("h3", {}, "Candidates"), candidates(told, placeOf),
    ...(told.segments.length ? [h("h3", {}, "The prompt, as the engine will read it"), segments(told)] : []));
}

function drawHash(target, told) {
  const hash = told.hash ? [h("span", { class: "mono" }, told.hash), " in x-kvring-hash, for Envoy to choose by"] : "none: Envoy draws by chance";
  target.replaceChildren(
    ...now([["Hash", hash], ["Pool", told.pool], ...read(told)]),
    ...(told.segments.length ? [h("h3", {}, "The prompt, as the engine will read it"), segments(told)] : []));
}

const now = (facts) => [
  h("h3", {}, "What would happen now"),
  h("dl", { class: "facts" }, facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
];

const read = (told) => [
  ["Read as", told.api ? `${told.api}, model ${told.model}` : "no prompt that is known"],
  told.unkeyed ? ["No chain", told.unkeyed.replaceAll("_", " ")] : ["Chain", `${whole(told.chain.length)} blocks of ${told.block_bytes} bytes, about ${whole(told.prompt_tokens)} tokens${told.cut ? ", cut off" : ""}`],
  ["Key", told.key ? [h("span", { class: "mono" }, told.key), told.anchor === null ? ` from ${told.keyed_by.replaceAll("_", " ")}` : ` at block ${told.anchor}`] : told.steering === "hash" ? "none" : "none: routed by load"],
];

function candidates(told, placeOf) {
  const made = h("table", { class: "cards" });
  const columns = [
    { name: "endpoint", head: true }, { name: "cost", number: true }, { name: "cached" }, { name: "open", number: true },
    { name: "prefill waits", number: true }, { name: "work", number: true }, { name: "KV with it", number: true },
  ];
  const rows = [...told.candidates].sort((a, b) => (a.cost ?? 0) - (b.cost ?? 0)).map((one) => ({
    mark: one.endpoint === told.choice ? "chosen" : null,
    cells: [
      [swatch(hue(placeOf(told.pool, one.endpoint))), one.endpoint, one.endpoint === told.choice ? " (chosen)" : ""],
      one.cost === null ? "–" : whole(one.cost),
      [bar(told.prompt_tokens ? one.cached_tokens / told.prompt_tokens : 0), `${whole(one.cached_tokens)} tokens`],
      whole(one.inflight), whole(one.pending_tokens), whole(one.work), percent(one.kv_usage),
    ],
  }));
  table(made, columns, rows);
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Candidates, scrollable" }, made);
}

function segments(told) {
  const made = h("table", { class: "cards" });
  const end = told.segments.at(-1)?.end || 1;
  const columns = [{ name: "part", head: true }, { name: "bytes", number: true }, { name: "blocks" }, { name: "of the prompt" }];
  table(made, columns, told.segments.slice(0, 200).map((one) => ({ cells: [
    one.kind, whole(one.end - one.start),
    `${Math.floor(one.start / told.block_bytes)} – ${Math.floor(Math.max(one.end - 1, one.start) / told.block_bytes)}`,
    [bar((one.end - one.start) / end), percent((one.end - one.start) / end)],
  ] })));
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Parts of the prompt, scrollable" }, made);
}
