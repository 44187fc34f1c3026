// Why an item was recommended: how likely each code of its semantic ID was, and which history items share its prefix.

import { el, said } from "./dom.js";
import { titleOf } from "./item_titles.js";
import { bar } from "./semantic_id.js";

const SHOWN_ITEMS = 5;

/** The panel under one recommendation. */
export function explanationOf(item) {
  const { explanation } = item;
  if (!explanation) {
    const why = item.source === "fallback"
      ? "A popular item: the model was not asked, so there are no levels to show."
      : "The service gave no explanation for this item.";
    return el("p", { class: "hint" }, why);
  }
  return el("div", { class: "explanation" }, levels(item, explanation), parts(explanation), relatives(item, explanation));
}

function levels(item, explanation) {
  const scores = explanation.level_scores ?? [];
  if (scores.length === 0) {
    const neighbour = "The model did not write this item: others took it with the history, or its text is near.";
    return item.source === "model" ? el("p", { class: "hint" }, neighbour) : null;
  }
  const rows = scores.map((score, level) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, `Level ${level + 1}`),
      el("td", {}, el("span", { class: `code level-${level % 4}` }, String(item.semantic_id[level]))),
      el("td", { class: "wide" }, bar(Math.exp(score))),
      el("td", { class: "number" }, percent(Math.exp(score))),
      el("td", { class: "number" }, rounded(score)),
    ),
  );
  const head = ["Level", "Code", "", "Probability", "Log"].map((word) => el("th", { scope: "col" }, word));
  const caption = el("caption", {}, "How likely each code was, given the history and the codes before it");
  return el("table", { class: "levels" }, caption, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows));
}

function parts({ blend }) {
  if (!blend) return null;
  const because = blend.companion && el("span", { class: "hint" }, " most of all beside ", said(titleOf(blend.companion)));
  const rows = [
    ["The model", blend.model, null],
    ["What others took next", blend.company, because],
    ["Text", blend.text, null],
  ].map(([name, share, more]) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, name, more),
      el("td", { class: "wide" }, bar(share)),
      el("td", { class: "number" }, share > 0 ? percent(share) : "no"),
    ),
  );
  const head = ["Part", "", "Probability"].map((word) => el("th", { scope: "col" }, word));
  const caption = el("caption", {}, "How likely each part of the blend holds the item to be next");
  return el("table", { class: "parts" }, caption, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows));
}

function relatives(item, explanation) {
  const found = explanation.history ?? [];
  const total = item.semantic_id.length;
  if (found.length === 0) return el("p", { class: "hint" }, "No item of the history begins with the same code.");
  const shown = found.slice(0, SHOWN_ITEMS).map((one) =>
    el(
      "li",
      {},
      said(one.title || titleOf(one.item_id)),
      el("span", { class: "hint" }, ` shares ${one.shared_levels} of ${total} codes`),
    ),
  );
  const rest = found.length - shown.length;
  return el(
    "div",
    {},
    el("h3", {}, "Closest items of the history"),
    el("ul", { class: "relatives" }, shown, rest > 0 && el("li", { class: "hint" }, `and ${rest} more`)),
  );
}

// -0.001 is 0.00, not -0.00.
function rounded(score) {
  return (Math.round(score * 100) / 100 || 0).toFixed(2);
}

function percent(share) {
  return share >= 0.001 ? `${(100 * share).toFixed(1)} %` : "< 0.1 %";
}
