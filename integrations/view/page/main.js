"use strict";
// Asks the server, or shows the answers that came with the page.

const $ = (id) => document.getElementById(id);
const passages = new Passages($("passages"));
let answers = [];
let running = null; // aborts what is being asked

function say(text) {
  if ($("status").textContent !== text) $("status").textContent = text; // said aloud once
}

function fail(text) {
  $("error").textContent = text;
  $("error").hidden = !text;
}

/** Lay out one answer, or several side by side. */
function lay(titles) {
  answers = titles.map((title) => new Answer(title, passages));
  $("answers").replaceChildren(...answers.map((answer) => answer.element));
  $("view").classList.toggle("several", titles.length > 1);
  $("replay").hidden = true;
}

/** What the first answer copied is marked in the passages; both ways can be gone. */
function markCopied() {
  const [first] = answers;
  if (first.result) passages.mark(first.result.grounding, (span) => first.find(span));
}

/** In words what came of it. */
function summary() {
  const [first, plain] = answers;
  if (!plain) return `${counted(first.tokens, "token")}, ${counted(first.result.grounding.length, "copied span")}`;
  const [a, b] = [characters(first.result.text), characters(plain.result.text)];
  const differs = a.findIndex((character, i) => character !== b[i]);
  const same = first.result.text === plain.result.text
    ? "The same text"
    : `The texts differ from character ${differs < 0 ? a.length : differs} on`;
  if (!first.speed || !plain.speed) return `${same}.`;
  return `${same}, decoded ${(first.speed / plain.speed).toFixed(1)} times as fast.`;
}

function finished() {
  say(summary());
  markCopied();
  $("replay").hidden = answers.every((answer) => answer.tokens < 2);
}

/** Show the answers once more at the pace at which they came, side by side. */
async function replay() {
  $("replay").disabled = true;
  const recorded = answers.map((answer) => answer.records);
  say("Replaying at the pace it was written");
  await Promise.all(answers.map((answer, i) => {
    const records = recorded[i].filter((record) => record.type === "step" || record.type === "result");
    const start = performance.now() - records[0].at_s * 1000;
    answer.clear();
    return new Promise((done) => {
      const next = () => {
        while (records.length && records[0].at_s * 1000 <= performance.now() - start) answer.take(records.shift());
        if (records.length) requestAnimationFrame(next);
        else done();
      };
      next();
    });
  }));
  $("replay").disabled = false;
  finished();
}

/** The records of one answer from the server, as they come. */
async function* asked(body, signal) {
  const headers = { "Content-Type": "application/json" };
  if ($("key").value) headers.Authorization = `Bearer ${$("key").value}`;
  const response = await fetch("v1/answers", { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!response.ok) {
    const told = await response.json().catch(() => null);
    if (response.status === 401) {
      $("settings").open = true;
      $("key").focus();
    }
    throw new Error(told?.error?.message ?? `The server answered ${response.status} ${response.statusText}`);
  }
  let waiting = "";
  for await (const piece of texts(response.body)) {
    waiting += piece.replaceAll("\r\n", "\n");
    const events = waiting.split("\n\n");
    waiting = events.pop();
    for (const event of events) {
      const data = event.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5)).join("\n");
      if (!data || data.trim() === "[DONE]") continue;
      const record = JSON.parse(data);
      if (record.error) throw new Error(record.error.message);
      yield record;
    }
  }
}

async function* texts(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let read = await reader.read(); !read.done; read = await reader.read()) yield read.value;
}

function settings() {
  const number = (id) => ($(id).value === "" ? undefined : Number($(id).value));
  return {
    question: $("question").value, k: number("k"), max_tokens: number("max_tokens"),
    temperature: number("temperature"), seed: number("seed"), namespace: $("namespace").value || undefined,
  };
}

/** One answer after the other: side by side they would slow each other down. */
async function ask() {
  const compare = $("compare").checked;
  const question = settings();
  running = new AbortController();
  busy(true);
  fail("");
  $("intro").hidden = true;
  passages.clear();
  lay(compare ? ["With speculation", "Plain decoding"] : ["Answer"]);
  try {
    for (const [index, answer] of answers.entries()) {
      say(index ? "The same without speculation" : "Searching");
      const body = { ...question, stream: true, trace: true, speculate: index === 0 };
      for await (const record of asked(body, running.signal)) {
        if (record.type === "question") about(record);
        if (record.type === "retrieval" && index === 0) passages.show(record.passages);
        if (record.type === "prefill") say(`Reading the prompt, ${record.done} of ${counted(record.total, "token")}`);
        if (record.type === "step") say(index ? "Writing the same without speculation" : "Writing");
        answer.take(record);
      }
      if (!answer.result) throw new Error("The answer broke off.");
      question.seed ??= answer.result.seed ?? undefined; // so that both draw the same
      markCopied();
    }
    finished();
  } catch (error) {
    say(error.name === "AbortError" ? "Stopped" : "");
    if (error.name !== "AbortError") fail(error.message);
    for (const answer of answers) answer.text.classList.remove("writing");
  } finally {
    busy(false);
  }
}

function busy(now) {
  $("submit").disabled = now;
  $("stop").hidden = !now;
  $("view").setAttribute("aria-busy", String(now));
}

function about(record) {
  $("model").textContent = [record.model, record.dtype, record.device].filter(Boolean).join(" · ");
}

/** Show answers that are there already. */
function display(recorded) {
  const [first] = recorded;
  about(first);
  $("asked").textContent = first.question;
  $("asked").hidden = false;
  document.title = `${first.question} – groundspeed`;
  passages.show(first.passages);
  lay(recorded.length > 1
    ? recorded.map((one) => (one.speculate ? "With speculation" : "Plain decoding"))
    : ["Answer"]);
  recorded.forEach((one, index) => {
    for (const step of one.steps) answers[index].take({ type: "step", ...step });
    answers[index].take({ type: "result", ...one });
  });
  finished();
}

function grow() {
  $("question").style.height = "auto";
  $("question").style.height = `${$("question").scrollHeight + 2}px`;
}

$("replay").addEventListener("click", replay);
const embedded = $("answers-data");
if (embedded) {
  display(JSON.parse(embedded.textContent));
} else {
  $("ask").hidden = false;
  $("intro").hidden = false;
  document.querySelector("#intro .legend").append(...Object.keys(SOURCES).map((source) => sample(source)));
  $("question").focus();
  $("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!running || $("stop").hidden) ask();
  });
  $("ask").addEventListener("invalid", (event) => {
    if (event.target !== $("question")) $("settings").open = true; // or it could not be seen
  }, true);
  $("stop").addEventListener("click", () => running?.abort());
  $("question").addEventListener("input", grow);
  $("question").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      $("ask").requestSubmit();
    }
  });
}
