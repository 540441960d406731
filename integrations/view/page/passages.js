"use strict";
// The passages, and in them what was copied.

class Passages {
  constructor(section) {
    this.section = section;
    this.list = section.querySelector("ol");
    this.passages = [];
    this.cards = [];
    this.marks = new Map(); // by span, see key()
  }

  clear() {
    this.passages = [];
    this.cards = [];
    this.marks.clear();
    this.list.replaceChildren();
    this.section.hidden = true;
  }

  show(passages) {
    this.clear();
    this.passages = passages;
    this.section.hidden = false;
    if (!passages.length) this.list.append(el("li", { className: "none" }, "Nothing was found."));
    this.cards = passages.map((passage, index) => this.#card(passage, index));
    this.list.append(...this.cards);
  }

  /** Mark the spans that an answer copied; `go(span)` is called where one is chosen. */
  mark(spans, go) {
    this.marks.clear();
    this.passages.forEach((passage, index) => {
      const own = spans.filter((span) => span.passage === index);
      const text = this.cards[index].querySelector(".text");
      text.replaceChildren(...this.#marked(passage, own, go));
      this.cards[index].classList.toggle("copied", own.length > 0);
      const cut = this.cards[index].querySelector(".more");
      if (own.length) cut.hidden = true;
    });
  }

  /** Go to where a span stands. */
  find(span) {
    show(this.marks.get(Passages.key(span)) ?? this.cards[span.passage]);
  }

  /** Let the card of a passage stand out, or none. */
  point(index) {
    this.cards.forEach((card, i) => card.classList.toggle("pointed", i === index));
  }

  static key(span) {
    return `${span.passage}:${span.document_start}:${span.document_end}`;
  }

  #card(passage, index) {
    const text = el("p", { className: "text", dir: "auto", id: `passage-${index}` }, passage.text);
    const title = passage.metadata?.title;
    const more = el("button", { type: "button", className: "more" }, "Show all");
    more.setAttribute("aria-expanded", "false");
    more.setAttribute("aria-controls", text.id);
    const card = el("li", { tabIndex: -1 },
      el("h3", {},
        el("span", { className: "number" }, String(index + 1)),
        el("span", { className: "document", dir: "auto" }, passage.document_id),
      ),
      el("p", { className: "where" },
        [
          typeof title === "string" ? title : null,
          `characters ${passage.start.toLocaleString("en")} to ${passage.end.toLocaleString("en")}`,
          passage.in_prompt ? null : "not in the prompt, draft source only",
        ].filter(Boolean).join(" · "),
      ),
      text,
      more,
    );
    more.addEventListener("click", () => {
      const open = card.classList.toggle("open");
      more.textContent = open ? "Show less" : "Show all";
      more.setAttribute("aria-expanded", String(open));
    });
    more.hidden = passage.text.length < 180;
    return card;
  }

  /** The text of a passage in pieces, marked where it was copied; a copy may run on behind it. */
  #marked(passage, spans, go) {
    const text = characters(passage.text);
    const edges = new Set([0, text.length]);
    for (const span of spans) {
      edges.add(Math.min(Math.max(span.document_start - passage.start, 0), text.length));
      edges.add(Math.min(Math.max(span.document_end - passage.start, 0), text.length));
    }
    const cuts = [...edges].sort((a, b) => a - b);
    const pieces = cuts.slice(1).map((end, i) => {
      const [from, to] = [passage.start + cuts[i], passage.start + end];
      const span = spans.find((one) => one.document_start <= from && to <= one.document_end);
      const piece = text.slice(cuts[i], end).join("");
      return span ? this.#mark(piece, span, go) : piece;
    });
    for (const span of spans.filter((one) => one.document_end > passage.end)) {
      const gap = span.document_start > passage.end ? " […] " : "";
      const beyond = characters(span.text).slice(Math.max(passage.end - span.document_start, 0)).join("");
      const piece = this.#mark(beyond, span, go);
      piece.classList.add("beyond");
      piece.title = "Stands behind this passage in its document";
      pieces.push(gap, piece);
    }
    return pieces;
  }

  #mark(text, span, go) {
    const mark = el("a", { className: "mark", href: "#answers", title: "Show it in the answer" }, text);
    mark.addEventListener("click", (event) => {
      event.preventDefault();
      go(span);
    });
    if (!this.marks.has(Passages.key(span))) this.marks.set(Passages.key(span), mark);
    return mark;
  }
}
