// Numbers and names as people read them.

const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const NOTHING = "–";
export const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
export const whole = (value) => (known(value) ? plain.format(value) : NOTHING);
export const compact = (value) => (known(value) ? short.format(value) : NOTHING);
export const percent = (share) => (known(share) ? `${(100 * share).toFixed(share < 0.1 && share > 0 ? 1 : 0)} %` : NOTHING);

export function seconds(value) {
  if (!known(value)) return NOTHING;
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${(value * 1e3).toFixed(value < 0.01 ? 1 : 0)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  return `${(value / 3600).toFixed(1)} h`;
}

// Neighbours in a pool are far apart in hue: the golden angle.
export const hue = (place) => Math.round((185 + place * 137.508) % 360);

export const REASONS = {
  home: ["good", "first in ring order"],
  warm: ["good", "holds more of the prompt, or has less to do, than the home"],
  overflow: ["warn", "the preferred one was over the bound"],
  least_load: [null, "no chain: the least loaded"],
  turn: [null, "its turn"],
  hash: ["good", "Envoy chooses by this hash"],
  no_hash: [null, "nothing to hash: Envoy draws by chance"],
};
