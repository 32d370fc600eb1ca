// The page at work: asks once a second, draws what it hears, says aloud only what changed for the worse or better.

import { $, h } from "./dom.js";
import { drawChoices } from "./choices.js";
import { drawEndpoints } from "./endpoints.js";
import { listenExplain } from "./explain.js";
import { figures } from "./figures.js";
import { Rates } from "./rates.js";
import { drawRing } from "./ring.js";
import { Refused, ask, setToken } from "./source.js";

const EVERY_MS = 1000;
const CHOICES_KEPT = 256;

const rates = new Rates();
let paused = false;
let pools = [];
let choices = [];
let heard = { number: 0, atMs: 0 };
let live = null;
let news = "";

async function look() {
  try {
    const state = await ask("api/state");
    await lookAtChoices();
    $("key").hidden = true;
    pools = state.pools;
    $("version").textContent = state.version;
    fillPools();
    draw(state);
  } catch (error) {
    if (error instanceof Refused && error.status === 401) askForToken();
    else stand("bad", "no answer", `No answer from kvring: ${error.message}.`);
  }
}

async function lookAtChoices() {
  try {
    live = await ask(`api/choices?after=${heard.number}`);
  } catch (error) {
    if (!(error instanceof Refused) || error.status !== 403) throw error;
    $("narrow").textContent = "Choices, settings and explain are shown to this machine only, as long as no admin_token_file is set. Endpoints and load are below.";
    $("narrow").hidden = false;
    return;
  }
  const nowMs = performance.now();
  if (live.latest < heard.number) choices = []; // kvring restarted
  const passed = (nowMs - heard.atMs) / 1000;
  const older = choices.map((one) => ({ ...one, age_s: one.age_s + passed }));
  choices = [...live.choices, ...older].slice(0, CHOICES_KEPT);
  heard = { number: live.latest, atMs: nowMs };
  rates.add(live.totals);
}

function draw(state) {
  const pool = pools.find((one) => one.name === $("pool").value) ?? pools[0];
  const out = pool.endpoints.filter((one) => !one.ready);
  if (pool.panic) stand("bad", "no opinion", `Nobody of pool ${pool.name} can be chosen.`);
  else if (out.length) stand("warn", `${out.length} out`, `Out of pool ${pool.name}: ${out.map((one) => one.name).slice(0, 5).join(", ")}.`);
  else if (pool.steering === "hash" && state.ready) stand("good", "well", "Envoy's own hashing chooses the endpoints.");
  else stand(state.ready ? "good" : "warn", state.ready ? "well" : "not ready", state.ready ? "All endpoints are ready." : "kvring is not ready.");
  $("figures").replaceChildren(...figures(pool, live, rates));
  drawRing(pool, live?.rings[pool.name] ?? [], choices);
  drawEndpoints(pool);
  drawChoices(pool, choices);
}

function stand(kind, text, said) {
  $("standing").dataset.kind = kind;
  $("standing").textContent = text;
  if (said !== news) $("news").textContent = said;
  news = said;
}

function fillPools() {
  const names = pools.map((one) => one.name);
  const shown = [...$("pool").options].map((one) => one.value);
  if (names.join("\n") === shown.join("\n")) return;
  const chosen = $("pool").value;
  $("pool").replaceChildren(...names.map((name) => h("option", { value: name }, name)));
  if (names.includes(chosen)) $("pool").value = chosen;
  $("pool-pick").hidden = names.length < 2;
}

function askForToken() {
  if ($("key").hidden) {
    $("key").hidden = false;
    stand("warn", "token needed", "This kvring asks for a token.");
  }
}

async function fillConfig() {
  if (!$("config").open || $("settings").textContent) return;
  try {
    const told = await ask("api/config");
    $("versions").replaceChildren(...Object.entries(told.versions).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
    $("settings").textContent = JSON.stringify(told.config, null, 2);
  } catch (error) {
    $("versions").replaceChildren(h("dt", {}, "No answer"), h("dd", {}, error.message));
  }
}

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  if (paused) stand("wait", "paused", "Paused.");
});
$("pool").addEventListener("change", look);
$("config").addEventListener("toggle", fillConfig);
$("key").addEventListener("submit", (event) => {
  event.preventDefault();
  setToken($("token").value.trim());
  $("token").value = "";
  $("key-problem").textContent = "";
  look().then(() => { if (!$("key").hidden) $("key-problem").textContent = "That is not the token."; });
});
listenExplain((pool, name) => Math.max(0, (pools.find((one) => one.name === pool)?.endpoints ?? []).findIndex((one) => one.name === name)));

// One question at a time: an answer that takes long is waited for, not asked for again.
async function go() {
  if (!paused && !document.hidden) await look();
  setTimeout(go, EVERY_MS);
}
go();
