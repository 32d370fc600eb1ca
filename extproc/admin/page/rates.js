// Rates from totals: what rose between the newest answer and one some seconds before.

const KEPT = 90;
const WINDOW_S = 10;

export class Rates {
  constructor() {
    this.seen = [];
  }

  add(totals) {
    const at = performance.now() / 1000;
    const last = this.seen.at(-1);
    if (last && totals.prompt_tokens < last.totals.prompt_tokens) this.seen = []; // kvring restarted
    this.seen.push({ at, totals });
    if (this.seen.length > KEPT) this.seen.shift();
  }

  // How much `of(totals)` rose a second, over the last WINDOW_S or less; null before there are two answers.
  rate(of, at = this.seen.length - 1) {
    if (at < 1) return null;
    const now = this.seen[at];
    let from = at - 1;
    while (from > 0 && now.at - this.seen[from].at < WINDOW_S) from -= 1;
    const before = this.seen[from];
    return (of(now.totals) - of(before.totals)) / Math.max(now.at - before.at, 0.001);
  }

  share(part, all, at = this.seen.length - 1) {
    const whole = this.rate(all, at);
    return whole > 0 ? this.rate(part, at) / whole : null;
  }

  // The same at every answer kept, for a line through time.
  line(of) {
    return this.seen.map((_, at) => of(at)).filter((value) => value !== null);
  }
}

export const sum = (counts) => Object.values(counts).reduce((total, count) => total + count, 0);
