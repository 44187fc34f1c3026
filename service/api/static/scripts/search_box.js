// Search as you type over the catalogue: a combobox after the ARIA pattern, so the keyboard does all of it.

import { get } from "./api.js";
import { el, paused, said } from "./dom.js";
import { remember } from "./item_titles.js";
import { notice } from "./notices.js";

const SHOWN = 8;
const PAUSE_MS = 150;
let boxes = 0;

/** Fill `place` with a search box; `onPick` is told the item that was chosen. */
export function startSearchBox(place, { label, placeholder, onPick }) {
  return new SearchBox(place, label, placeholder, onPick);
}

class SearchBox {
  constructor(place, label, placeholder, onPick) {
    this.id = `search-${++boxes}`;
    this.onPick = onPick;
    this.found = [];
    this.active = -1;
    this.input = el("input", {
      id: this.id, type: "text", role: "combobox", placeholder, autocomplete: "off", spellcheck: "false",
      "aria-expanded": "false", "aria-autocomplete": "list", "aria-controls": `${this.id}-list`,
    });
    this.list = el("ul", { id: `${this.id}-list`, class: "options", role: "listbox", "aria-label": label, hidden: true });
    this.trouble = el("div", { class: "notices" });
    place.append(el("label", { for: this.id }, label), this.input, this.list, this.trouble);
    const search = paused(PAUSE_MS, () => this.search());
    this.input.addEventListener("input", search);
    this.input.addEventListener("focus", () => this.search());
    this.input.addEventListener("keydown", (event) => this.onKey(event));
    this.input.addEventListener("blur", () => this.close());
  }

  async search() {
    this.running?.abort();
    this.running = new AbortController();
    try {
      const query = { q: this.input.value.trim(), limit: SHOWN };
      const answer = await get("items", query, { signal: this.running.signal });
      this.trouble.replaceChildren();
      if (document.activeElement === this.input) this.show(answer.items.slice(0, SHOWN));
    } catch (error) {
      if (error.name === "AbortError") return;
      this.close();
      this.trouble.replaceChildren(notice("bad", said(error.detail ?? error.message)));
    }
  }

  show(items) {
    remember(items);
    this.found = items;
    this.list.replaceChildren(...items.map((item, index) => this.option(item, index)));
    if (items.length === 0) this.list.append(el("li", { class: "none" }, "No item has these words."));
    this.list.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
    this.mark(-1);
  }

  option(item, index) {
    return el(
      "li",
      {
        id: `${this.id}-${index}`, role: "option", "aria-selected": "false",
        on: { mousedown: (event) => event.preventDefault(), click: () => this.pick(index) },
      },
      said(item.title || item.item_id), " ", said(item.item_id, { class: "id" }),
    );
  }

  onKey(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key in steps) {
      event.preventDefault();
      if (this.list.hidden) this.search();
      else this.mark((this.active + steps[event.key] + this.found.length) % Math.max(1, this.found.length));
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (!this.list.hidden && this.found.length > 0) this.pick(Math.max(0, this.active));
    } else if (event.key === "Escape") this.close();
  }

  mark(index) {
    this.active = index;
    [...this.list.children].forEach((option, place) => option.setAttribute("aria-selected", String(place === index)));
    if (index < 0) this.input.removeAttribute("aria-activedescendant");
    else {
      this.input.setAttribute("aria-activedescendant", `${this.id}-${index}`);
      this.list.children[index].scrollIntoView({ block: "nearest" });
    }
  }

  pick(index) {
    const item = this.found[index];
    this.input.value = "";
    this.close();
    this.onPick(item);
  }

  close() {
    this.running?.abort();
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }
}
