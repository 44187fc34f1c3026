// The filter of a request, as a form over the fields that the service declares; it knows nothing of what is done with it.

import { button, byId, el, said } from "./dom.js";

const MAX_CHOICES = 40;

export class FiltersForm extends EventTarget {
  #fields = [];
  #asked = undefined;

  /** Draw the controls of the declared fields `{name, numeric, values}`. */
  show(fields) {
    this.#fields = fields;
    const rows = fields.flatMap((field) => [
      field.values.length > 0 ? this.#choices(field) : null, field.numeric ? this.#range(field) : null,
    ]).filter(Boolean);
    byId("filters").hidden = fields.length === 0;
    byId("filter-fields").replaceChildren(...rows, button("Clear filter", () => this.clear(), { id: "filter-clear" }));
    this.#changed();
  }

  /** The `filter` of a request; undefined when nothing is asked. */
  value() {
    const filter = { include: {}, exclude: {}, min: {}, max: {} };
    for (const input of byId("filter-fields").querySelectorAll("[data-field]")) {
      const { field, part } = input.dataset;
      if (part === "choice") {
        const rule = { must: "include", not: "exclude" }[input.dataset.state];
        if (rule) (filter[rule][field] ??= []).push(JSON.parse(input.dataset.value));
      } else if (input.value !== "") filter[part][field] = Number(input.value);
    }
    const used = Object.entries(filter).filter(([, rules]) => Object.keys(rules).length > 0);
    return used.length > 0 ? Object.fromEntries(used) : undefined;
  }

  clear() {
    this.show(this.#fields);
  }

  #changed() {
    const filter = this.value();
    const asked = JSON.stringify(filter);
    byId("filter-summary").replaceChildren(filter ? said(summary(filter)) : "none");
    if (asked === this.#asked) return;
    this.#asked = asked;
    this.dispatchEvent(new Event("change"));
  }

  #range(field) {
    const end = (part, word) =>
      el("label", {}, word, el("input", {
        type: "number", step: "any", "data-field": field.name, "data-part": part,
        "aria-label": `${field.name} ${word}`, on: { change: () => this.#changed() },
      }));
    return el("fieldset", { class: "range" }, el("legend", {}, said(field.name)), end("min", "from"), end("max", "to"));
  }

  #choices(field) {
    const values = field.values.slice(0, MAX_CHOICES);
    const chips = values.map((value) => el("li", {}, this.#choice(field, value)));
    const rest = field.values.length - values.length;
    return el(
      "fieldset",
      {},
      el("legend", {}, said(field.name)),
      el("ul", { class: "chips" }, chips, rest > 0 && el("li", { class: "hint" }, `and ${rest} more values`)),
    );
  }

  // One press includes the value, the next excludes it, the third forgets it.
  #choice(field, value) {
    const chip = el("button", {
      type: "button", class: "chip", "data-field": field.name, "data-part": "choice", "data-value": JSON.stringify(value),
      on: { click: () => { turn(chip, value); this.#changed(); } },
    });
    chip.dataset.state = "not";
    turn(chip, value);
    return chip;
  }
}

function turn(chip, value) {
  const next = { any: "must", must: "not", not: "any" }[chip.dataset.state];
  chip.dataset.state = next;
  const words = { any: "any", must: "included", not: "excluded" }[next];
  chip.setAttribute("aria-label", `${value}: ${words}`);
  chip.setAttribute("aria-pressed", { any: "false", must: "true", not: "mixed" }[next]);
  chip.replaceChildren({ any: "", must: "✓ ", not: "✕ " }[next], said(value));
}

function summary(filter) {
  const parts = [];
  for (const [field, values] of Object.entries(filter.include ?? {})) parts.push(`${field}: ${values.join(" or ")}`);
  for (const [field, values] of Object.entries(filter.exclude ?? {})) parts.push(`${field}: not ${values.join(", ")}`);
  for (const [field, value] of Object.entries(filter.min ?? {})) parts.push(`${field} ≥ ${value}`);
  for (const [field, value] of Object.entries(filter.max ?? {})) parts.push(`${field} ≤ ${value}`);
  return parts.join("; ");
}
