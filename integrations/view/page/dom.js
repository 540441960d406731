"use strict";
// Elements and words. Text goes in as text nodes only, so that no document or answer can become markup.

const SOURCES = {
  passage: "a passage",
  prompt: "the prompt",
  output: "the answer so far",
  datastore: "the datastore",
  recycled: "what the model held possible before",
  grammar: "the grammar",
  model: "a draft model",
  target: "the model itself",
};

/** Make an element: properties by name (`dataset` and `aria-*` too), children as elements or text. */
function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("aria-") || name === "role" || name === "for") element.setAttribute(name, value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** The characters of a text: offsets count these, and a string of JavaScript counts otherwise. */
function characters(text) {
  return Array.from(text);
}

function counted(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

function rate(perSecond) {
  return perSecond >= 100 ? perSecond.toFixed(0) : perSecond.toFixed(1);
}

function milliseconds(seconds) {
  return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
}

/** Where a token was drafted from, in words. */
function sourceName(token) {
  return token.source === "passage" ? `passage ${token.passage + 1}` : SOURCES[token.source];
}

/** A source in a legend, as its words look. */
function sample(source, ...more) {
  const name = source === "target" ? SOURCES.target : `from ${SOURCES[source]}`;
  return el("li", {}, el("span", { className: `words ${source}` }, name), ...more);
}

/** The text of tokens with spaces and line breaks made visible where they would be lost. */
function visible(text) {
  return text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ | $/g, "␣");
}

/** Bring an element into view and let it light up. */
function show(element) {
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  element.scrollIntoView({ block: "center", behavior: calm ? "auto" : "smooth" });
  element.focus({ preventScroll: true });
  element.classList.remove("lit");
  void element.offsetWidth; // lets the animation begin anew
  element.classList.add("lit");
}
