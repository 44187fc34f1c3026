// The left side: choosing a user, adding items by search, and the history with its order.

import { get } from "./api.js";
import { button, byId, counted, el, said } from "./dom.js";
import { isUnknown, titleOf } from "./item_titles.js";
import { guarded, showError } from "./notices.js";
import { startSearchBox } from "./search_box.js";

const SAMPLE_USERS = 8;

/** Draw the panel for `history` and keep it up to date. */
export function startHistoryPanel(history) {
  byId("user-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const userId = byId("user-id").value.trim();
    if (userId) openUser(history, userId);
    else byId("user-id").focus();
  });
  byId("history-clear").addEventListener("click", () => {
    byId("user-id").value = "";
    history.clear();
  });
  startSearchBox(byId("history-search"), {
    label: "Add items", placeholder: "search the catalogue", onPick: (item) => history.add(item),
  });
  history.addEventListener("change", () => draw(history));
  draw(history);
}

/** Offer some users that have a history; a key that may not list users can still name one. */
export async function sampleUsers(history) {
  const place = byId("user-samples");
  try {
    const { users } = await get("users:sample", { limit: SAMPLE_USERS });
    const choices = users.map(({ user_id: userId, items }) =>
      el("li", {}, button(said(userId), () => openUser(history, userId), { class: "chip", title: counted(items, "event") })),
    );
    place.replaceChildren(choices.length > 0 ? el("ul", { class: "chips", "aria-label": "Some users" }, choices) : "");
  } catch (error) {
    if (error.status === 403) place.replaceChildren();
    else showError(place, error);
  }
}

async function openUser(history, userId) {
  byId("user-id").value = userId;
  await guarded(byId("history-notice"), () => history.load(userId));
}

function draw(history) {
  const count = history.itemIds.length;
  byId("history-clear").hidden = count === 0 && history.userId === null;
  byId("history-state").replaceChildren(...describe(history, count));
  // Newest first, as people expect of a history; the model reads it the other way round.
  const rows = history.itemIds.map((itemId, index) => row(history, itemId, index)).reverse();
  byId("history-list").replaceChildren(...rows);
}

function describe(history, count) {
  if (history.userId === null && count === 0) return ["Nobody yet: choose a user, or add items to make a history."];
  if (history.userId === null) return [`A history made here: ${counted(count, "item")}.`];
  const user = el("strong", {}, said(history.userId));
  if (history.stored) return ["Stored history of ", user, `: ${counted(count, "item")}, newest first.`];
  const back = button("Back to the stored one", () => openUser(history, history.userId), { class: "link" });
  return ["A draft from the history of ", user, `: ${counted(count, "item")}. `, back];
}

function row(history, itemId, index) {
  const title = titleOf(itemId);
  const last = history.itemIds.length - 1;
  return el(
    "li",
    { class: history.fresh.has(itemId) ? "arrived" : null },
    el("span", { class: "title" }, said(title), isUnknown(itemId) && el("span", { class: "badge" }, "not in the catalogue")),
    el(
      "span",
      { class: "tools" },
      tool("↑", `Make ${title} newer`, index === last, () => moved(history, index, 1)),
      tool("↓", `Make ${title} older`, index === 0, () => moved(history, index, -1)),
      tool("×", `Remove ${title}`, false, () => removed(history, index)),
    ),
  );
}

function tool(sign, label, disabled, action) {
  return button(sign, action, { class: "quiet tool", "aria-label": label, title: label, disabled });
}

// The list is drawn anew, so the focus is put back where the keyboard was.
function moved(history, index, step) {
  history.move(index, step);
  const place = history.itemIds.length - 1 - (index + step);
  const tools = byId("history-list").children[place].querySelectorAll(".tool");
  const same = tools[step === 1 ? 0 : 1];
  (same.disabled ? tools[step === 1 ? 1 : 0] : same).focus();
}

function removed(history, index) {
  const place = history.itemIds.length - 1 - index;
  history.remove(index);
  const rows = byId("history-list").children;
  const next = rows[Math.min(place, rows.length - 1)];
  if (next) next.querySelector(".tool:last-child").focus();
  else byId("history-search").querySelector("input").focus();
}
