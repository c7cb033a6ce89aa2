// How a client's test file in JavaScript is written: `check(name, function)`, `await run()` last.
// Each check prints `ok NAME` or `not ok NAME: what was wrong`.

export const DEMO = process.env.DEMO_URL; // the bundled model, named `diff`
export const SCRIPTED = process.env.SCRIPTED_URL; // the model of scripts.py, named `scripted`
export const KEYED = process.env.KEYED_URL; // the bundled model, with the key `sesame`
export const FULL = process.env.FULL_URL; // SCRIPTED with little room
const TIMEOUT_S = Number(process.env.CHECK_TIMEOUT_S ?? 60);

const checks = [];

export function check(name, body) {
  checks.push([name, body]);
}

export function shown(value) {
  const text = typeof value === "string" ? value : (JSON.stringify(value) ?? String(value));
  return text.length <= 600 ? text : text.slice(0, 600) + "...";
}

export function same(got, expected, what = "value") {
  if (JSON.stringify(got) !== JSON.stringify(expected)) {
    throw new Error(`${what} is ${shown(got)}; expected ${shown(expected)}`);
  }
}

export function yes(condition, what) {
  if (!condition) throw new Error(what);
}

// The error that `call` throws.
export async function thrown(call) {
  let got;
  try {
    got = await call();
  } catch (error) {
    return error;
  }
  throw new Error(`expected an error, got ${shown(got)}`);
}

// Fills the server FULL until it refuses; what is returned ends that work.
export async function fill() {
  const controller = new AbortController();
  const body = { model: "scripted", prompt: "a", max_tokens: 8000, ignore_eos: true,
                 stream: true };
  const ask = () => fetch(`${FULL}/v1/completions`, {
    method: "POST", headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body), signal: controller.signal });
  await ask(); // runs, so that no place in the line becomes free
  await new Promise((refused) => {
    for (let i = 0; i < 12; i++) {
      ask().then(({ status }) => { if (status === 429) refused(); }, () => {});
    }
  });
  return () => controller.abort();
}

function limited(body) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done within ${TIMEOUT_S} s`)),
                       1000 * TIMEOUT_S);
  });
  return Promise.race([body(), late]).finally(() => clearTimeout(timer));
}

export async function run() {
  for (const [name, body] of checks) {
    try {
      await limited(body);
      console.log(`ok ${name}`);
    } catch (error) {
      const more = error?.responseBody ?? error?.cause?.message ?? "";
      const text = shown(`${error?.name}: ${error?.message} ${more}`);
      console.log(`not ok ${name}: ${JSON.stringify(text)}`);
    }
  }
  process.exit(0);
}
