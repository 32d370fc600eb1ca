// Where the page's data comes from: this kvring's /api. A token, once given, lives in this tab only.

const NAME = "kvring-token";

export class Refused extends Error {
  constructor(status, problem) {
    super(problem);
    this.status = status;
  }
}

export const setToken = (token) => sessionStorage.setItem(NAME, token);

export async function ask(path, options = {}) {
  const token = sessionStorage.getItem(NAME);
  const headers = { ...options.headers, ...(token ? { authorization: `Bearer ${token}` } : {}) };
  const answer = await fetch(path, { ...options, headers, cache: "no-store", signal: AbortSignal.timeout(8000) });
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, found.problem ?? `answer ${answer.status}`);
  return found;
}
