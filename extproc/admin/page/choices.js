// The latest choices, newest first.

import { $, badge, bar, swatch, table } from "./dom.js";
import { REASONS, compact, hue, percent, seconds, whole } from "./words.js";

const SHOWN = matchMedia("(max-width: 640px)").matches ? 8 : 14;
const COLUMNS = [
  { name: "ago" }, { name: "went to", head: true }, { name: "why", whole: true }, { name: "key", whole: true }, { name: "cached" },
  { name: "tokens", number: true }, { name: "work", number: true }, { name: "decided in", number: true },
];

export function drawChoices(pool, choices) {
  const places = new Map(pool.endpoints.map((one, place) => [one.name, place]));
  const rows = choices.filter((one) => one.pool === pool.name).slice(0, SHOWN).map((one) => ({ cells: [
    seconds(one.age_s),
    one.endpoint ? [swatch(hue(places.get(one.endpoint) ?? 0)), one.endpoint] : "left to Envoy",
    why(one),
    key(one),
    one.endpoint && one.prompt_tokens ? [bar(one.cached_tokens / one.prompt_tokens), percent(one.cached_tokens / one.prompt_tokens)] : "–",
    compact(one.prompt_tokens),
    compact(one.work_seen),
    `${whole(one.spent_us)} µs`,
  ] }));
  table($("choices"), COLUMNS, rows);
}

function why(one) {
  const [kind, says] = REASONS[one.reason] ?? [null, one.reason];
  const mark = badge(one.reason.replace("_", " "), kind);
  mark.title = says;
  const more = [one.unkeyed?.replaceAll("_", " "), one.ring_steps ? `${one.ring_steps} passed over` : null, ...one.limits.map((limit) => `limit ${limit}`)];
  const text = more.filter(Boolean).join(", ");
  return text ? [mark, ` ${text}`] : mark;
}

function key(one) {
  if (one.key === null) return "–";
  const made = document.createElement("span");
  made.className = "mono";
  made.textContent = one.key;
  const by = one.keyed_by === "anchor" ? ` block ${one.anchor_block} of ${one.chain_blocks}` : ` ${one.keyed_by.replaceAll("_", " ")}`;
  return [made, by];
}
