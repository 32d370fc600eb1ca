// The endpoints of a pool: who may be chosen, how busy, what they hold, what they tell.

import { $, badge, bar, swatch, table } from "./dom.js";
import { compact, hue, known, percent, seconds, whole } from "./words.js";

const COLUMNS = [
  { name: "endpoint", head: true }, { name: "state", whole: true }, { name: "of the bound" }, { name: "open", number: true },
  { name: "prefill", number: true }, { name: "residency" }, { name: "foretold", number: true },
  { name: "found", number: true }, { name: "KV", number: true }, { name: "TTFT P50 / P99", number: true },
  { name: "signals", number: true },
];

export function drawEndpoints(pool) {
  if (pool.steering === "hash") {
    $("endpoints-sum").textContent = "steering: hash";
    $("endpoints").replaceChildren();
    $("source").textContent = "Envoy's own consistent hashing chooses; kvring knows no endpoint of this pool.";
    return;
  }
  const ready = pool.endpoints.filter((one) => one.ready).length;
  $("endpoints-sum").textContent = `${ready} of ${pool.endpoints.length} ready · ${pool.policy} · bound ${compact(pool.bound)} ${pool.bound_on}`;
  table($("endpoints"), COLUMNS, pool.endpoints.map((one, place) => ({ cells: cells(one, place, pool) })));
  const source = pool.source;
  const age = known(source.age_s) && source.age_s > 1 ? `, heard ${seconds(source.age_s)} ago` : "";
  const problem = source.problem ? `; in trouble: ${source.problem} ${source.detail}` : "";
  $("source").textContent = source.kind ? `Members from: ${source.kind}${age}${problem}.` : "";
}

function cells(one, place, pool) {
  const told = one.signals ?? {};
  const load = one.filled;
  const held = one.capacity_blocks ? one.residency_blocks / one.capacity_blocks : 0;
  return [
    [swatch(hue(place)), one.name],
    state(one),
    [bar(load, load >= 1 ? "bad" : load > 0.7 ? "warn" : null), percent(load)],
    whole(one.inflight),
    compact(one.pending_tokens),
    [bar(held), percent(held)],
    percent(one.predicted_hit),
    percent(one.engine_hit),
    percent(told.kv_usage),
    `${seconds(told.ttft_p50_s)} / ${seconds(told.ttft_p99_s)}`,
    one.signals ? seconds(told.age_s) : one.signals_problem ?? "–",
  ];
}

function state(one) {
  if (!one.ready) return badge(`out: ${one.against.join(", ")}`, "bad");
  return one.share < 1 ? badge(`ramps up, ${percent(one.share)}`, "warn") : badge("ready", "good");
}
