"use strict";
// One answer: its figures, its words by source, its steps.

class Answer {
  constructor(title, passages) {
    this.title = title;
    this.passages = passages;
    this.text = el("div", { className: "answer", dir: "auto" });
    this.figures = el("dl", { className: "figures" });
    this.legend = el("ul", { className: "legend", "aria-label": "Sources of the words" });
    this.note = el("p", { className: "note", hidden: true });
    this.steps = new Steps((index) => this.#light(index));
    this.element = el("article", { "aria-label": title },
      el("h2", {}, title), this.figures, this.text, this.legend, this.note, this.steps.element);
    this.text.addEventListener("click", (event) => {
      const words = event.target.closest("[data-step]");
      if (words && !event.target.closest(".quote")) this.steps.select(Number(words.dataset.step));
    });
    this.text.addEventListener("pointerover", (event) => {
      const passage = event.target.closest("[data-passage]")?.dataset.passage;
      this.passages.point(passage === undefined ? -1 : Number(passage));
    });
    this.text.addEventListener("pointerleave", () => this.passages.point(-1));
    this.clear();
  }

  clear() {
    this.records = [];
    this.result = null;
    this.quotes = [];
    this.counts = new Map();
    this.tokens = this.drafted = this.accepted = 0;
    this.begun = this.last = null;
    this.text.replaceChildren();
    this.text.classList.add("writing");
    this.legend.replaceChildren();
    this.note.hidden = true;
    const fresh = new Steps((index) => this.#light(index));
    this.steps.element.replaceWith(fresh.element);
    this.steps = fresh;
    this.#figure();
  }

  /** Take in a record of the answer, as it comes. */
  take(record) {
    this.records.push(record);
    if (record.type === "step") this.#step(record);
    if (record.type === "result") this.#finish(record);
  }

  /** Where a copied span stands in this answer. */
  find(span) {
    const quote = this.quotes.find((one) => one.span.start === span.start);
    if (quote) show(quote.element);
  }

  #step(record) {
    const index = this.steps.steps.length;
    this.steps.add(record);
    this.begun ??= record.at_s;
    this.last = record.at_s;
    this.tokens += record.committed;
    this.drafted += record.drafted;
    this.accepted += record.accepted;
    for (const run of runs(record.tokens)) this.text.append(this.#words(run.text, run, index));
    for (const token of record.tokens) {
      const name = token.source;
      this.counts.set(name, (this.counts.get(name) ?? 0) + 1);
    }
    this.#figure();
    this.#explain();
  }

  #finish(record) {
    this.result = record;
    this.text.classList.remove("writing");
    this.#quote(record.grounding);
    this.#figure();
    const notes = [];
    if (record.finish_reason !== "stop") notes.push(`ended: ${{
      length: "longest answer reached", context: "context full", timeout: "time is up", cancelled: "stopped",
    }[record.finish_reason]}`);
    if (record.stats.decoding_reason) notes.push(`${record.stats.decoding} decoding: ${record.stats.decoding_reason}`);
    if (record.seed !== null) notes.push(`drawn with seed ${record.seed}`);
    this.note.textContent = notes.join(" · ");
    this.note.hidden = !notes.length;
  }

  #words(text, token, step) {
    const words = el("span", {
      className: `words ${token.source}`, dataset: { step },
      title: `from ${sourceName(token)}, ${step ? `step ${step}` : "with the prompt"}`,
    }, text);
    if (token.source === "passage") words.dataset.passage = token.passage;
    return words;
  }

  /** Set the answer anew, with the copied spans as links to their passages. */
  #quote(spans) {
    const waiting = [...spans];
    let at = 0;
    let quote = null;
    const close = () => {
      if (!quote) return;
      quote.element.append(el("sup", {}, `\u2060${quote.span.passage + 1}`)); // kept on the line of its word
      quote = null;
    };
    this.text.replaceChildren();
    this.steps.steps.forEach((step, index) => {
      for (const run of runs(step.tokens)) {
        let rest = characters(run.text);
        while (rest.length) {
          if (quote && at === quote.span.end) close();
          if (!quote && waiting.length && at === waiting[0].start) quote = this.#link(waiting.shift());
          const edge = quote ? quote.span.end : waiting.length ? waiting[0].start : Infinity;
          const piece = rest.slice(0, edge - at);
          (quote?.element ?? this.text).append(this.#words(piece.join(""), run, index));
          rest = rest.slice(piece.length);
          at += piece.length;
        }
      }
    });
    close();
  }

  #link(span) {
    const element = el("a", {
      className: "quote", href: `#passage-${span.passage}`,
      title: `Word for word in passage ${span.passage + 1}, ${span.document_id}, ` +
        `characters ${span.document_start} to ${span.document_end}`,
    });
    element.addEventListener("click", (event) => {
      event.preventDefault();
      this.passages.find(span);
    });
    const quote = { span, element };
    this.quotes.push(quote);
    this.text.append(element);
    return quote;
  }

  #light(index) {
    for (const words of this.text.querySelectorAll("[data-step]")) {
      words.classList.toggle("chosen", Number(words.dataset.step) === index);
    }
  }

  /** Tokens a second: of the finished answer, or so far. */
  get speed() {
    if (this.result) return this.result.stats.tokens_per_second;
    return this.last > this.begun ? (this.tokens - 1) / (this.last - this.begun) : 0;
  }

  #figure() {
    const steps = Math.max(this.steps.steps.length - 1, 0);
    const stats = this.result?.stats;
    const perStep = stats ? stats.tokens_per_step : steps ? (this.tokens - 1) / steps : 0;
    const figures = [
      ["tokens/s", this.speed ? rate(this.speed) : "–"],
      ["tokens/step", perStep ? perStep.toFixed(2) : "–"],
      ["tokens in steps", this.tokens ? `${this.tokens} in ${steps}` : "–"],
      ["drafts accepted", this.tokens ? `${this.accepted} of ${this.drafted}` : "–"],
    ];
    if (stats) {
      const cached = stats.cached_tokens ? `, ${stats.cached_tokens} cached` : "";
      figures.push([`prompt${cached}`, `${stats.prompt_tokens} in ${stats.prefill_s.toFixed(2)} s`]);
    }
    this.figures.replaceChildren(...figures.map(([name, value]) =>
      el("div", {}, el("dt", {}, name), el("dd", {}, value))));
  }

  #explain() {
    const entries = Object.keys(SOURCES).filter((source) => this.counts.has(source));
    this.legend.replaceChildren(...entries.map((source) =>
      sample(source, el("span", { className: "count" }, String(this.counts.get(source))))));
  }
}
