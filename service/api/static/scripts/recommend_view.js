// The recommendations: asks whenever history or controls change, and shows the answer, its reasons and its versions.

import { post } from "./api.js";
import { button, byId, counted, el, paused, said, unseen } from "./dom.js";
import { explanationOf } from "./explanation.js";
import { remember } from "./item_titles.js";
import { notice, showError } from "./notices.js";
import { semanticId, sourceBadge } from "./semantic_id.js";

const PAUSE_MS = 120;

const REASONS = {
  history_unavailable: "The stored history could not be read; popular or last known items are shown.",
  engine_unavailable: "The engine does not answer; popular items are shown.",
  deadline_exceeded: "The model did not answer in time; popular items are shown.",
  unknown_history_items: "The catalogue knows no item of this history; popular items are shown.",
};

export class RecommendView {
  #history;
  #filters;
  #running = null;
  #opened = new Set();
  #sending = false;
  /** Items to be marked in the next answers: those posted here. */
  highlighted = new Set();
  last = null;

  constructor(history, filters) {
    this.#history = history;
    this.#filters = filters;
    const ask = paused(PAUSE_MS, () => this.ask());
    history.addEventListener("change", ask);
    filters.addEventListener("change", ask);
    byId("controls").addEventListener("change", (event) => {
      if (event.target.id === "event-kind") this.#draw(this.last);
      else ask();
    });
    byId("controls").addEventListener("submit", (event) => {
      event.preventDefault();
      ask();
    });
    byId("recommend-again").addEventListener("click", () => this.ask());
  }

  /** The kinds of event that the service knows. */
  offerEvents(kinds) {
    if (kinds.length > 0) byId("event-kind").replaceChildren(...kinds.map((kind) => el("option", {}, kind)));
  }

  /** Ask now; an older question that still runs is given up. Returns the answer, or null. */
  async ask() {
    this.#running?.abort();
    const running = (this.#running = new AbortController());
    byId("recommendations-panel").setAttribute("aria-busy", "true");
    try {
      this.last = await post("recommend", this.#body(), { signal: running.signal });
      remember(this.last.items);
      byId("recommend-notice").replaceChildren(...remarks(this.last, this.highlighted));
      this.#draw(this.last);
    } catch (error) {
      if (running.signal.aborted) return null;
      this.last = null;
      this.#draw(null);
      showError(byId("recommend-notice"), error);
    }
    if (this.#running === running) byId("recommendations-panel").removeAttribute("aria-busy");
    return this.last;
  }

  #body() {
    const body = { ...this.#history.request(), num_results: Number(byId("num-results").value), exclude_seen: byId("exclude-seen").checked };
    if (byId("explain").checked) body.explain = true;
    const filter = this.#filters.value();
    if (filter) body.filter = filter;
    return body;
  }

  #draw(answer) {
    byId("recommend-meta").textContent = answer ? meta(answer) : "";
    const list = byId("recommendations");
    const focus = focusIn(list);
    list.dataset.answer = answer?.recommendation_id ?? "";
    list.replaceChildren(...(answer?.items ?? []).map((item) => this.#row(item)));
    list.children[focus?.row]?.querySelectorAll("button")[focus.button]?.focus({ preventScroll: true });
  }

  #row(item) {
    const ours = this.highlighted.has(item.item_id);
    return el(
      "li",
      { class: ours ? "recommendation ours arrived" : "recommendation", "data-item": item.item_id },
      el("span", { class: "rank" }, String(item.rank)),
      el(
        "div",
        { class: "what" },
        el("p", { class: "title" }, said(item.title || item.item_id), ours && el("span", { class: "badge new_item" }, "posted here")),
        el("p", { class: "facts" }, sourceBadge(item.source), item.semantic_id && semanticId(item.semantic_id), said(item.item_id, { class: "id" })),
      ),
      el("span", { class: "score", title: "log-probability" }, unseen("score "), item.score.toFixed(2)),
      el("div", { class: "actions" }, this.#why(item), this.#take(item)),
      el("div", { class: "why", id: `why-${item.rank}`, hidden: !this.#isOpen(item) }, this.#isOpen(item) && explanationOf(item)),
    );
  }

  #isOpen(item) {
    return byId("explain").checked && this.#opened.has(item.item_id);
  }

  #why(item) {
    if (!byId("explain").checked) return null;
    const toggle = button("Why", () => {
      const place = byId(`why-${item.rank}`);
      place.hidden = !place.hidden;
      if (place.hidden) this.#opened.delete(item.item_id);
      else this.#opened.add(item.item_id);
      place.replaceChildren(...(place.hidden ? [] : [explanationOf(item)]));
      toggle.setAttribute("aria-expanded", String(!place.hidden));
    }, { class: "quiet why-toggle", "aria-controls": `why-${item.rank}`, "aria-expanded": String(this.#isOpen(item)) });
    toggle.setAttribute("aria-label", `Why ${item.title || item.item_id}`);
    return toggle;
  }

  // With a user this is an event that the service stores; without one it makes a history here.
  #take(item) {
    const title = item.title || item.item_id;
    if (this.#history.userId === null || !this.#history.stored) {
      return button("Add to history", () => this.#history.add(item), { class: "quiet", "aria-label": `Add ${title} to the history` });
    }
    const kind = byId("event-kind").value;
    return button(`Send ${kind}`, () => this.#send(item, kind), { class: "quiet", "aria-label": `Send a ${kind} of ${title}` });
  }

  async #send(item, kind) {
    if (this.#sending) return;
    this.#sending = true;
    const { userId } = this.#history;
    const body = { user_id: userId, item_id: item.item_id, event: kind, recommendation_id: this.last?.recommendation_id };
    try {
      const { feedback_only: ignored } = await post("events", body);
      await this.#history.load(userId, { fresh: [item.item_id] });
      if (ignored) byId("recommend-notice").replaceChildren(notice("good", `Recorded. Events of the kind "${kind}" enter no history.`));
    } catch (error) {
      showError(byId("recommend-notice"), error);
    }
    this.#sending = false;
  }
}

// The list is drawn anew with each answer; where the keyboard was, it shall be again.
function focusIn(list) {
  const row = [...list.children].findIndex((child) => child.contains(document.activeElement));
  if (row < 0) return null;
  return { row, button: [...list.children[row].querySelectorAll("button")].indexOf(document.activeElement) };
}

function remarks(answer, posted) {
  const told = answer.degraded_reasons.map((reason) => notice("warn", REASONS[reason] ?? `Degraded: ${reason}`));
  if (answer.degraded && told.length === 0) told.push(notice("warn", "The answer is degraded; the service gave no reason."));
  if (answer.items.length === 0) told.push(notice("warn", "No item may be recommended: the filter and the exclusions leave none."));
  else if (!answer.degraded && answer.items.every((item) => item.source === "fallback")) {
    told.push(notice("good", "No history to go by, so these are popular items."));
  }
  const missing = [...posted].filter((itemId) => answer.items.every((item) => item.item_id !== itemId));
  if (missing.length > 0 && answer.items.length > 0) {
    told.push(notice("plain", `${counted(missing.length, "item")} posted here ${missing.length === 1 ? "is" : "are"} not among these results; ask for more of them.`));
  }
  return told;
}

function meta(answer) {
  const parts = [counted(answer.items.length, "result"), `${answer.took_ms.toFixed(1)} ms`, `model ${answer.model_version}`, `catalogue ${answer.catalog_version}`];
  return parts.join(" · ");
}
