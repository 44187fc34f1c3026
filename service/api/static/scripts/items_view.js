// Posting an item and watching it arrive; looking an item up; deleting it.

import { get, post, remove, segment } from "./api.js";
import { button, byId, el, said } from "./dom.js";
import { remember } from "./item_titles.js";
import { guarded, notice, showError } from "./notices.js";
import { startSearchBox } from "./search_box.js";
import { bar, semanticId } from "./semantic_id.js";

const RESULTS = {
  created: "good", updated: "good", unchanged: "plain", rejected: "bad",
};

export class ItemsView {
  #history;
  #recommend;
  #fields = [];

  constructor(history, recommend) {
    this.#history = history;
    this.#recommend = recommend;
    byId("item-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#post(false);
    });
    byId("item-preview").addEventListener("click", () => this.#post(true));
    const place = el("div", { class: "combo" });
    byId("item-results").before(place);
    startSearchBox(place, { label: "Look up an item", placeholder: "search the catalogue", onPick: (item) => this.#look(item.item_id) });
    this.#empty();
  }

  /** Offer one control per attribute that items of this catalogue have. */
  show(fields) {
    this.#fields = fields;
    byId("item-attributes").hidden = fields.length === 0;
    byId("item-attributes").replaceChildren(el("legend", {}, "Attributes"), ...fields.map(attribute));
  }

  async #post(dryRun) {
    const body = this.#body();
    const start = performance.now();
    const answer = await guarded(byId("item-notice"), () => post(dryRun ? "items?dry_run=true" : "items", body));
    if (!answer) return;
    const milliseconds = performance.now() - start;
    for (const result of answer.items) {
      if (!dryRun && result.result !== "rejected") await this.#arrived(body);
      this.#put(this.#card(body, result, { dryRun, milliseconds }));
    }
  }

  async #arrived(item) {
    remember([item]);
    this.#recommend.highlighted.add(item.item_id);
    await Promise.all([this.#recommend.ask(), this.#recount()]);
  }

  #body() {
    const body = { item_id: byId("item-id").value.trim(), title: byId("item-title").value };
    const description = byId("item-description").value;
    if (description) body.description = description;
    const attributes = {};
    for (const field of this.#fields) {
      const text = byId("item-attributes").querySelector(`[data-field="${CSS.escape(field.name)}"]`).value.trim();
      if (text !== "") attributes[field.name] = parsed(field, text);
    }
    if (Object.keys(attributes).length > 0) body.attributes = attributes;
    return body;
  }

  async #look(itemId) {
    await guarded(byId("item-notice"), async () => {
      const item = await get(`items/${segment(itemId)}`);
      this.#put(this.#shown(item));
    });
  }

  #put(card) {
    byId("item-results").querySelector(".empty")?.remove();
    byId("item-results").querySelector(`[data-item="${CSS.escape(card.dataset.item)}"]`)?.remove();
    byId("item-results").prepend(card);
    card.querySelector("h3").focus({ preventScroll: true });
  }

  #empty() {
    byId("item-results").replaceChildren(el("p", { class: "hint empty" }, "Nothing posted yet. Post an item, or look one up to see its semantic ID."));
  }

  #card(item, result, { dryRun, milliseconds }) {
    const word = dryRun ? `would be ${result.result}` : result.result;
    return this.#frame(
      item,
      el("span", { class: `badge ${RESULTS[result.result] ?? "plain"}` }, word),
      result.reason && notice(result.result === "rejected" ? "bad" : "warn", said(result.reason)),
      result.semantic_id && el("p", { class: "facts" }, semanticId(result.semantic_id), el("span", { class: "hint" }, `answered in ${Math.round(milliseconds)} ms`)),
      result.collides_with && el("p", { class: "hint" }, "Shares its semantic ID with ", said(result.collides_with), "."),
      result.grounding && grounding(result.grounding, result.semantic_id),
      !dryRun && result.result !== "rejected" && this.#place(result.item_id),
      !dryRun && result.result !== "rejected" && this.#actions(result.item_id, result.grounding?.neighbours ?? []),
    );
  }

  #shown(item) {
    const facts = Object.entries(item.attributes ?? {}).flatMap(([name, value]) => [el("dt", {}, said(name)), el("dd", {}, said([value].flat().join(", ")))]);
    return this.#frame(
      item,
      item.is_new && el("span", { class: "badge new_item" }, "new item"),
      item.semantic_id && el("p", { class: "facts" }, semanticId(item.semantic_id)),
      item.description && el("p", { class: "hint" }, said(item.description)),
      facts.length > 0 && el("dl", { class: "facts-list" }, facts),
      this.#actions(item.item_id, []),
    );
  }

  #frame(item, badge, ...parts) {
    return el(
      "article",
      { class: "card arrived", "data-item": item.item_id },
      el("header", {}, el("h3", { tabindex: "-1" }, said(item.title || item.item_id)), badge),
      el("p", { class: "hint" }, said(item.item_id, { class: "id" })),
      parts,
    );
  }

  // Where the item stands in what is recommended now: the proof that it arrived.
  #place(itemId) {
    const found = this.#recommend.last?.items.find((item) => item.item_id === itemId);
    const text = found
      ? `Rank ${found.rank} of the current recommendations.`
      : "Not among the current recommendations: the history is about other things.";
    return el("p", { class: "place" }, text, found && [" ", el("a", { href: "#recommend" }, "See it there")]);
  }

  #actions(itemId, neighbours) {
    const row = el("div", { class: "row" });
    if (neighbours.length > 0) {
      row.append(button("Try with a history of its neighbours", () => {
        this.#history.replace(neighbours.toReversed());
        location.hash = "#recommend";
      }));
    }
    row.append(this.#deletion(itemId));
    return row;
  }

  #deletion(itemId) {
    const ask = button("Delete", () => {
      const sure = button("Delete for good", () => this.#delete(itemId, sure), { class: "danger" });
      sure.addEventListener("blur", () => setTimeout(() => sure.isConnected && !sure.disabled && sure.replaceWith(ask)));
      ask.replaceWith(sure);
      sure.focus();
    }, { class: "quiet danger", "aria-label": `Delete ${itemId}` });
    return ask;
  }

  async #delete(itemId, pressed) {
    const card = pressed.closest(".card");
    pressed.disabled = true;
    try {
      await remove(`items/${segment(itemId)}`);
    } catch (error) {
      pressed.disabled = false;
      showError(byId("item-notice"), error);
      return;
    }
    remember([{ item_id: itemId, title: null }]);
    this.#recommend.highlighted.delete(itemId);
    card.remove();
    if (byId("item-results").children.length === 0) this.#empty();
    byId("item-notice").replaceChildren(notice("good", ["Deleted ", said(itemId), ": it is recommended no more."].flat()));
    await Promise.all([this.#recommend.ask(), this.#recount()]);
  }

  // The header says how many items there are; it hears it from this answer.
  async #recount() {
    await guarded(byId("model-notice"), () => get("model"));
  }
}

function grounding({ neighbours, confidence, distances = [], warning }, codes) {
  const rows = neighbours.map((one) => barRow(said(one.title || one.item_id), one.similarity, one.similarity.toFixed(2)));
  const levels = distances.map((left, level) => {
    const code = codes && el("span", { class: `code level-${level % 4}` }, String(codes[level]));
    return barRow([`Level ${level + 1} `, code], 1 - left, `${Math.round(100 * (1 - left))} %`);
  });
  return el(
    "div",
    { class: "grounding" },
    el("p", {}, "Confidence ", bar(confidence, { class: "bar meter" }), el("strong", {}, confidence.toFixed(2)), el("span", { class: "hint" }, " likeness to the nearest trained item")),
    warning && notice("warn", said(warning)),
    rows.length > 0 && barTable("Nearest items the model was trained with", rows),
    levels.length > 0 && barTable("How much of the text the codes so far explain", levels),
  );
}

function barRow(label, share, number) {
  return el("tr", {}, el("th", { scope: "row" }, label), el("td", { class: "wide" }, bar(share)), el("td", { class: "number" }, number));
}

function barTable(caption, rows) {
  return el("table", { class: "neighbours" }, el("caption", {}, caption), el("tbody", {}, rows));
}

function attribute({ name, numeric, values }) {
  const placeholder = numeric ? "a number" : values.length > 0 ? `such as ${values[0]}` : null;
  const inputmode = numeric && values.length === 0 ? "decimal" : null;
  return el("label", {}, said(name), el("input", { type: "text", inputmode, "data-field": name, placeholder }));
}

// A number where the field has numbers, a list where there are commas; what is not fit, the service says.
function parsed({ numeric }, text) {
  if (numeric && Number.isFinite(Number(text))) return Number(text);
  if (text === "true" || text === "false") return text === "true";
  return text.includes(",") ? text.split(",").map((part) => part.trim()).filter(Boolean) : text;
}
