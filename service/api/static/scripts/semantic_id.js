// How a semantic ID looks everywhere: one chip per code, tinted by level, so that shared prefixes can be seen.

import { el, unseen } from "./dom.js";

/** The first `shared` codes are marked as shared; the whole is a link into the tree unless `link` is false. */
export function semanticId(codes, { shared = 0, link = true } = {}) {
  const chips = codes.map((code, level) =>
    el("span", { class: `code level-${level % 4}${level < shared ? " shared" : ""}` }, String(code)),
  );
  const text = unseen(`semantic ID ${codes.join(", ")}`);
  const inside = el("span", { class: "codes", "aria-hidden": "true" }, chips);
  if (!link) return el("span", { class: "sid" }, text, inside);
  const prefix = codes.slice(0, -1).join("/");
  return el("a", { class: "sid", href: `#tree/${prefix}`, title: "Show in the tree of semantic IDs" }, text, inside);
}

/** A horizontal bar for a share of 0..1; the number beside it is what a screen reader reads. */
export function bar(share, attributes = {}) {
  const width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return el("span", { class: "bar", "aria-hidden": "true", ...attributes }, el("span", { vars: { "--share": width } }));
}

/** Where an item comes from, in a word. */
export function sourceBadge(source) {
  const words = { model: "model", new_item: "new item", fallback: "popular" };
  const why = {
    model: "Chosen by the model",
    new_item: "Newer than the model: its score is lent by trained neighbours",
    fallback: "A popular item, not chosen by the model",
  };
  return el("span", { class: `badge ${source}`, title: why[source] ?? "" }, words[source] ?? String(source));
}
