// The catalogue as a tree of semantic IDs, opened level by level; only what is opened is asked for.

import { get } from "./api.js";
import { button, byId, counted, el, said } from "./dom.js";
import { showError } from "./notices.js";
import { bar } from "./semantic_id.js";

const PAGE = 100;

/** Draw the tree anew and open it along `prefix`. */
export async function showTree(prefix = []) {
  const place = byId("tree");
  byId("tree-notice").replaceChildren();
  try {
    const root = await level([]);
    const lines = [
      `${counted(root.items, "item")} under ${counted(root.levels, "level")} of ${root.codes} codes.`,
      "Items that share the first codes are alike; a level tells apart what the one before left together.",
    ];
    byId("tree-hint").textContent = lines.join(" ");
    place.replaceChildren(await branch(root, prefix));
    place.querySelector(".target")?.scrollIntoView({ block: "center" });
  } catch (error) {
    place.replaceChildren();
    showError(byId("tree-notice"), error);
  }
}

function level(prefix, after) {
  return get("catalog/tree", { prefix: prefix.join(","), limit: PAGE, after });
}

// One level as a list; along `path` it is opened further.
async function branch(found, path = []) {
  const list = el("ul", { class: "branch" });
  const most = Math.max(1, ...found.children.map((child) => child.items));
  for (const child of found.children) list.append(await node(found, child, most, path));
  if (found.next !== null) list.append(more(found, list));
  return list;
}

function more(found, list) {
  const line = el("li", {}, button("Show more codes", async (event) => {
    event.target.disabled = true;
    try {
      const rest = await branch(await level(found.prefix, found.next));
      line.replaceWith(...rest.children);
    } catch (error) {
      event.target.disabled = false;
      showError(byId("tree-notice"), error);
    }
  }));
  return line;
}

async function node(parent, child, most, path) {
  const depth = parent.prefix.length;
  const prefix = [...parent.prefix, child.code];
  const opens = path[0] === child.code;
  const inside = el("div", { class: "inside", hidden: true });
  const toggle = el(
    "button",
    { type: "button", class: "node", "aria-expanded": "false", "aria-label": labelOf(child, depth) },
    el("span", { class: `code level-${depth % 4}` }, String(child.code)),
    bar(child.items / most),
    el("span", { class: "number" }, child.items.toLocaleString("en")),
    child.new_items > 0 && el("span", { class: "badge new_item" }, `${child.new_items} new`),
    el("span", { class: "samples" }, child.titles.flatMap((title, index) => [index > 0 && " · ", said(title)])),
  );
  const open = async (further) => {
    inside.replaceChildren(depth + 1 === parent.levels ? leaf(child) : await branch(await level(prefix), further));
    inside.hidden = false;
    toggle.setAttribute("aria-expanded", "true");
  };
  toggle.addEventListener("click", () => {
    if (inside.hidden) open([]).catch((error) => showError(byId("tree-notice"), error));
    else {
      inside.hidden = true;
      toggle.setAttribute("aria-expanded", "false");
    }
  });
  if (opens) await open(path.slice(1));
  return el("li", { class: opens && path.length === 1 ? "target" : null }, toggle, inside);
}

function leaf(child) {
  const rows = child.members.map((item) =>
    el("li", {}, said(item.title || item.item_id), " ", said(item.item_id, { class: "id" }), item.is_new && el("span", { class: "badge new_item" }, "new item")),
  );
  const rest = child.items - child.members.length;
  return el("ul", { class: "leaf" }, rows, rest > 0 && el("li", { class: "hint" }, `and ${rest} more`));
}

function labelOf(child, depth) {
  const fresh = child.new_items > 0 ? `, ${child.new_items} new` : "";
  return `Level ${depth + 1}, code ${child.code}: ${counted(child.items, "item")}${fresh}, such as ${child.titles.join(", ")}`;
}
