// The ring: who is first in line for a key (band), where recent keys stand and went (lines), how full endpoints are.

import { $, s, swatch, table } from "./dom.js";
import { hue, percent, whole } from "./words.js";

const CENTRE = 240;
const BAND = 218;
const SEEN_S = 30;
const LINES_MOST = 60;
const NAMES_MOST = 12;

const at = (turn, radius) => {
  const angle = 2 * Math.PI * turn - Math.PI / 2;
  return [CENTRE + radius * Math.cos(angle), CENTRE + radius * Math.sin(angle)];
};
const point = (turn, radius) => at(turn, radius).map((value) => value.toFixed(1)).join(" ");

export function drawRing(pool, slots, choices) {
  if (pool.steering === "hash") {
    $("ring").replaceChildren("The ring is Envoy's.");
    $("ring-table").replaceChildren();
    return;
  }
  const endpoints = pool.endpoints;
  const recent = choices.filter((one) => one.pool === pool.name && one.age_s < SEEN_S);
  const nodeRadius = Math.max(7, Math.min(26, 300 / Math.max(endpoints.length, 1)));
  const circle = endpoints.length > 1 ? 122 : 0;
  const places = new Map(endpoints.map((one, place) => [one.name, { place, turn: place / endpoints.length }]));
  const picture = s("svg", { viewBox: "0 0 480 480", role: "img", "aria-labelledby": "ring-title ring-text" },
    s("title", { id: "ring-title" }, `Ring of pool ${pool.name}`),
    s("desc", { id: "ring-text" }, inWords(pool, recent)),
    arcs(slots),
    recent.filter((one) => one.ring_at !== null && places.has(one.endpoint)).slice(0, LINES_MOST)
      .map((one) => chord(one, places.get(one.endpoint), circle, nodeRadius)),
    endpoints.map((one, place) => node(one, place, endpoints.length, circle, nodeRadius)),
    endpoints.length > 1 ? s("text", { x: CENTRE, y: CENTRE + 4, class: "big" }, whole(pool.open_leases)) : null,
    endpoints.length > 1 ? s("text", { x: CENTRE, y: CENTRE + 22, class: "name" }, "requests open") : null);
  $("ring").replaceChildren(picture);
  drawTable(pool, slots, recent);
}

// Equal neighbours are one arc: the band of 8 endpoints is some hundred pieces.
function arcs(slots) {
  const found = [];
  for (let from = 0; from < slots.length;) {
    let to = from + 1;
    while (to < slots.length && slots[to] === slots[from]) to += 1;
    const path = `M${point(from / slots.length, BAND)}A${BAND} ${BAND} 0 ${to - from > slots.length / 2 ? 1 : 0} 1 ${point(to / slots.length - 1e-5, BAND)}`;
    found.push(s("path", { class: "arc", d: path, hue: hue(slots[from]) }));
    from = to;
  }
  return found;
}

function chord(one, to, circle, nodeRadius) {
  const [x, y] = at(one.ring_at, BAND - 9);
  const [cx, cy] = at(one.ring_at, circle * 1.05);
  const [tx, ty] = at(to.turn, circle);
  const length = Math.hypot(tx - cx, ty - cy) || 1;
  const end = [tx - ((tx - cx) / length) * nodeRadius, ty - ((ty - cy) / length) * nodeRadius];
  return s("path", {
    class: "chord", "data-reason": one.reason, hue: hue(to.place), opacity: Math.max(0.12, 0.95 - one.age_s / SEEN_S).toFixed(2),
    d: `M${x.toFixed(1)} ${y.toFixed(1)}Q${cx.toFixed(1)} ${cy.toFixed(1)} ${end[0].toFixed(1)} ${end[1].toFixed(1)}`,
  });
}

function node(one, place, count, circle, radius) {
  const [x, y] = at(place / count, circle);
  const share = Math.min(1, one.filled);
  const around = 2 * Math.PI * radius;
  return s("g", {},
    s("title", {}, `${one.name}: ${one.ready ? percent(share) + " of the bound" : "out: " + one.against.join(", ")}`),
    s("circle", { class: "node", cx: x, cy: y, r: radius, "data-ready": one.ready }),
    one.ready ? s("circle", {
      class: "load", cx: x, cy: y, r: radius, hue: hue(place), "data-full": share >= 1,
      "stroke-dasharray": `${(share * around).toFixed(1)} ${around.toFixed(1)}`, transform: `rotate(-90 ${x} ${y})`,
    }) : null,
    radius > 12 ? s("text", { x, y: y + 4 }, whole(one.inflight)) : null,
    count <= NAMES_MOST ? s("text", { x, y: y + radius + 15, class: "name" }, shortened(one.name)) : null);
}

const shortened = (name) => (name.length > 16 ? `${name.slice(0, 7)}…${name.slice(-7)}` : name);

function inWords(pool, recent) {
  const ready = pool.endpoints.filter((one) => one.ready).length;
  const counts = (reason) => recent.filter((one) => one.reason === reason).length;
  const busiest = [...pool.endpoints].sort((a, b) => b.filled - a.filled)[0];
  const most = busiest ? ` Busiest: ${busiest.name}, at ${percent(busiest.filled)} of the bound.` : "";
  return `${pool.endpoints.length} endpoints, ${ready} ready.${most} Of the last ${recent.length} requests`
    + ` ${counts("home")} went home, ${counts("warm")} to a warmer endpoint, ${counts("overflow")} overflowed.`;
}

function drawTable(pool, slots, recent) {
  const columns = [
    { name: "endpoint", head: true }, { name: "of the ring", number: true }, { name: "home", number: true },
    { name: "warm", number: true }, { name: "overflow", number: true }, { name: "of the bound", number: true },
  ];
  const rows = pool.endpoints.map((one, place) => {
    const count = (reason) => whole(recent.filter((made) => made.endpoint === one.name && made.reason === reason).length);
    const owned = slots.length ? slots.filter((slot) => slot === place).length / slots.length : null;
    return { cells: [[swatch(hue(place)), one.name], percent(owned), count("home"), count("warm"), count("overflow"), percent(one.filled)] };
  });
  table($("ring-table"), columns, rows);
}
