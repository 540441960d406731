"use strict";
// The strip of verification steps, and what one of them drafted.

const BRANCHES = 8; // rejected branches of a step that are listed
const LEAST = 8; // tokens that a column of full height stands for, at least

class Steps {
  /** `choose(index)` is called with the step that was chosen, -1 for none. */
  constructor(choose) {
    this.choose = choose;
    this.steps = [];
    this.columns = [];
    this.most = { kept: LEAST, rejected: LEAST };
    this.chosen = -1;
    this.strip = el("div", { className: "strip", role: "toolbar", "aria-label": "Verification steps" });
    this.detail = el("div", { className: "detail", "aria-live": "polite" });
    this.element = el("section", { className: "steps", hidden: true },
      el("h3", {}, "Verification steps"),
      this.strip,
      el("p", { className: "key" },
        "Above the line what joined the answer, by source; below it what was drafted and rejected. ",
        "Choose a step with the pointer or the arrow keys."),
      this.detail,
    );
    this.strip.addEventListener("keydown", (event) => this.#key(event));
  }

  add(step) {
    const index = this.steps.push(step) - 1;
    const rejected = Math.max(step.drafted - step.accepted, 0);
    const what = index === 0
      ? "With the prompt: the first token"
      : `Step ${index}: ${step.drafted} drafted, ${step.accepted} accepted`;
    const above = this.#bar("kept", step.committed);
    for (const run of runs(step.tokens).reverse()) above.append(this.#part(run.source, run.count));
    const column = el("button",
      { type: "button", title: what, "aria-label": what, "aria-pressed": "false", tabIndex: index ? -1 : 0 },
      above, this.#bar("rejected", rejected));
    column.addEventListener("click", () => this.select(this.chosen === index ? -1 : index));
    this.columns.push(column);
    this.strip.append(column);
    this.most = { kept: Math.max(this.most.kept, step.committed), rejected: Math.max(this.most.rejected, rejected) };
    this.strip.style.setProperty("--most-kept", this.most.kept);
    this.strip.style.setProperty("--most-rejected", this.most.rejected);
    this.strip.scrollLeft = this.strip.scrollWidth;
    this.element.hidden = false;
  }

  select(index) {
    this.chosen = index;
    this.columns.forEach((column, i) => {
      column.setAttribute("aria-pressed", String(i === index));
      column.tabIndex = i === Math.max(index, 0) ? 0 : -1;
    });
    this.detail.replaceChildren(...(index < 0 ? [] : this.#described(index)));
    this.columns[index]?.scrollIntoView({ block: "nearest", inline: "nearest" });
    this.choose(index);
  }

  #bar(className, count) {
    const bar = el("span", { className });
    bar.style.setProperty("--n", count);
    return bar;
  }

  #part(source, count) {
    const part = el("span", { className: source });
    part.style.flexGrow = count;
    return part;
  }

  #key(event) {
    const last = this.columns.length - 1;
    const now = this.columns.indexOf(document.activeElement);
    const next = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") this.select(-1);
    if (next === undefined || next < 0 || next > last) return;
    event.preventDefault();
    this.select(next);
    this.columns[next].focus();
  }

  #described(index) {
    const step = this.steps[index];
    const seconds = step.draft_s + step.forward_s + step.accept_s + step.commit_s;
    const title = index === 0 ? "With the prompt" : `Step ${index}`;
    const counts = index === 0
      ? "the pass that ends the prompt gives the first token"
      : `${step.drafted} drafted, ${step.accepted} accepted, ${step.committed} in the answer`;
    const parts = ["draft", "forward", "accept", "commit"]
      .map((part) => `${part} ${milliseconds(step[`${part}_s`])}`).join(", ");
    const written = el("p", { className: "written" });
    for (const token of step.tokens) {
      written.append(el("span", { className: `chip ${token.source}`, title: `from ${sourceName(token)}` },
        visible(token.text)));
    }
    const described = [
      el("h4", {}, title, el("span", { className: "counts" }, counts)),
      el("p", { className: "times" }, `${milliseconds(seconds)}: ${parts}`),
      written,
    ];
    const branches = step.rejected ?? [];
    if (branches.length) {
      const list = el("ul", { className: "branches" });
      for (const branch of branches.slice(0, BRANCHES)) list.append(this.#branch(branch));
      const more = branches.length - BRANCHES;
      if (more > 0) list.append(el("li", { className: "soft" }, `and ${more} more`));
      described.push(el("h4", {}, "Drafted and rejected"), list);
    }
    return described;
  }

  #branch(branch) {
    const tokens = branch.tokens.map((token) =>
      el("del", { className: token.source, title: `from ${sourceName(token)}` }, visible(token.text)));
    const others = branch.nodes - branch.tokens.length;
    return el("li", {},
      el("span", { className: "chain" }, ...tokens, others ? el("span", { className: "soft" }, ` +${others}`) : null),
      el("span", { className: "from" },
        `${sourceName(branch.tokens[0])}, ${Math.round(branch.prob * 100)}% expected; `,
        ...(branch.instead === null
          ? ["the answer ends"]
          : ["the model wrote ", el("span", { className: "instead" }, visible(branch.instead))])),
    );
  }
}

/** Neighbouring tokens of one source and passage, together. */
function runs(tokens) {
  const found = [];
  for (const token of tokens) {
    const last = found.at(-1);
    if (last && last.source === token.source && last.passage === token.passage) {
      last.text += token.text;
      last.count += 1;
    } else {
      found.push({ ...token, count: 1 });
    }
  }
  return found;
}
