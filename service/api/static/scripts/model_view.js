// The model card: what is served, and how it was measured, as tables.

import { byId, el, said } from "./dom.js";

const FACTS = [
  ["model_version", "Model version"], ["created_at", "Made"], ["catalog_version", "Catalogue version"],
  ["catalog_items", "Items"], ["new_items", "Items newer than the model"], ["levels", "Levels of a semantic ID"],
  ["codes", "Codes per level"], ["max_history_items", "Items of a history it reads"], ["beam_width", "Beam width"],
  ["exclude_seen", "Leaves out seen items by default"],
];

const SECTIONS = [["data", "Trained with"], ["metrics", "Measured in training"]];

/** Draw the answer of GET /model; what this page does not know yet is shown under its own name. */
export function drawModel(model) {
  const known = new Set([...FACTS, ...SECTIONS].map(([name]) => name));
  const rest = Object.keys(model).filter((name) => !known.has(name)).map((name) => [name, words(name)]);
  byId("model").replaceChildren(
    el("dl", { class: "facts-list" }, [...FACTS, ...rest].flatMap(([name, label]) => fact(label, model[name]))),
    ...[...rest, ...SECTIONS].flatMap(([name, label]) => (isMapping(model[name]) ? sections(model[name], label) : [])),
  );
}

function fact(label, value) {
  if (value === undefined || value === null || isMapping(value)) return [];
  if (Array.isArray(value) && value.some(isMapping)) return [];
  return [el("dt", {}, said(label)), el("dd", {}, said(shown(value)))];
}

// A mapping becomes a list of its plain values, then a table of its rows of numbers, then a section for what is deeper.
function sections(metrics, title) {
  const entries = Object.entries(metrics);
  const plain = entries.filter(([, value]) => !isMapping(value));
  const rows = entries.filter(([, value]) => isRow(value));
  const deeper = entries.filter(([, value]) => isMapping(value) && !isRow(value));
  if (entries.length === 0) return [];
  return [
    el("h3", {}, said(title)),
    plain.length > 0 && el("dl", { class: "facts-list" }, plain.flatMap(([name, value]) => fact(words(name), value))),
    rows.length > 0 && table(rows, title),
    ...deeper.flatMap(([name, value]) => sections(value, words(name))),
  ].filter(Boolean);
}

function table(rows, title) {
  const columns = grouped(rows.flatMap(([, row]) => Object.keys(row).filter((name) => name !== "interval95")));
  const head = columns.map((name) => el("th", { scope: "col" }, said(words(name))));
  const body = rows.map(([name, row]) =>
    el("tr", {}, el("th", { scope: "row" }, said(words(name))), columns.map((column) => cell(row[column], row.interval95?.[column]))),
  );
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": title },
    el("table", { class: "metrics" }, el("thead", {}, el("tr", {}, el("td", {}), head)), el("tbody", {}, body)),
  );
}

function cell(value, interval) {
  const [middle, low, high] = Array.isArray(value) ? value : Array.isArray(interval) ? interval : [value];
  if (middle === undefined) return el("td", {}, "");
  const range = low !== undefined && `${shown(low)} – ${shown(high)}`;
  return el("td", { class: "number" }, el("span", { class: "value" }, shown(middle)), range && el("span", { class: "interval" }, range));
}

// Each name once; what differs only behind the "@" side by side.
function grouped(names) {
  const groups = Map.groupBy(new Set(names), (name) => name.split("@")[0]);
  return [...groups.values()].flat();
}

const isMapping = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const isCell = (value) => typeof value === "number" || (Array.isArray(value) && value.every((one) => typeof one === "number"));

function isRow(value) {
  return isMapping(value) && Object.entries(value).every(([name, one]) => name === "interval95" || isCell(one));
}

function shown(value) {
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Array.isArray(value)) return value.map(shown).join(", ");
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return Math.abs(value) >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(Math.abs(value) >= 1 ? 2 : 3);
}

function words(name) {
  const text = name.replaceAll("_", " ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}
