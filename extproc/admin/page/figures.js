// The tiles: what an operator asks first.

import { h, s } from "./dom.js";
import { sum } from "./rates.js";
import { compact, known, percent, seconds, whole } from "./words.js";

const requests = (totals) => sum(totals.choices) + totals.hashes + totals.no_opinion;

export function figures(pool, live, rates) {
  const rate = (at) => rates.rate(requests, at);
  const hit = (at) => rates.share((t) => t.cached_tokens, (t) => t.prompt_tokens, at);
  const told = pool.endpoints.map((one) => one.signals).filter(Boolean);
  const found = told.reduce((all, one) => [all[0] + (one.cached_tokens ?? 0), all[1] + (one.looked_up_tokens ?? 0)], [0, 0]);
  const p50 = middle(told.map((one) => one.ttft_p50_s).filter(known));
  const p99 = Math.max(...told.map((one) => one.ttft_p99_s).filter(known));
  const ready = pool.endpoints.filter((one) => one.ready).length;
  const totals = live?.totals;
  if (pool.steering === "hash") {
    return [
      tile("Requests", totals ? `${compact(rate())}/s` : null, "of all pools", rates.line(rate)),
      tile("Decision", seconds(live?.decision_s.p50), `P99 ${seconds(live?.decision_s.p99)}`),
      tile("Endpoints", whole(pool.endpoint_count), "about, as configured: Envoy knows them"),
      tile("Counted", whole(pool.anchor_edges), "runs of blocks, for the anchor"),
    ];
  }
  return [
    tile("Requests", totals ? `${compact(rate())}/s` : null, `${whole(pool.open_leases)} open`, rates.line(rate)),
    tile("Hit, foretold", percent(hit()), "of prompt tokens, last 10 s", rates.line(hit), 1),
    tile("Hit, found", percent(found[1] ? found[0] / found[1] : null), "by the engines, since their start"),
    tile("Time to first token", seconds(p50), known(p99) ? `P99 ${seconds(p99)}, the worst engine` : "engines do not tell"),
    tile("Decision", seconds(live?.decision_s.p50), `P99 ${seconds(live?.decision_s.p99)}`),
    tile("Left to Envoy", percent(totals ? rates.share((t) => t.no_opinion, requests) ?? 0 : null), totals ? `${whole(totals.no_opinion)} since the start` : ""),
    tile("Saved", totals ? `${compact(totals.saved_gpu_s)} s` : null, "of GPU time, over a blind choice"),
    tile("Ready", `${ready} of ${pool.endpoints.length}`, pool.panic ? "nobody can be chosen" : "endpoints"),
  ];
}

function tile(name, value, more, line = [], most = null) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, value ?? "–"), h("dd", { class: "quiet" }, more), line.length > 2 ? spark(line, most) : null);
}

function spark(line, most) {
  const top = most ?? Math.max(...line, 1e-9);
  const step = 100 / (line.length - 1);
  const path = line.map((value, at) => `${at ? "L" : "M"}${(at * step).toFixed(1)} ${(29 - 27 * Math.min(value / top, 1)).toFixed(1)}`).join("");
  return s("svg", { viewBox: "0 0 100 30", preserveAspectRatio: "none", "aria-hidden": "true" }, s("path", { class: "spark", d: path }));
}

function middle(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor(sorted.length / 2)] : null;
}
