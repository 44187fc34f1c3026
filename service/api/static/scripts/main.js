// Starts the page: one history, the views over it, and which of them the address names.

import { get, onVersion } from "./api.js";
import { byId, counted } from "./dom.js";
import { FiltersForm } from "./filters_form.js";
import { History } from "./history.js";
import { sampleUsers, startHistoryPanel } from "./history_panel.js";
import { ItemsView } from "./items_view.js";
import { onKeyChange, startKeyDialog } from "./key_dialog.js";
import { drawModel } from "./model_view.js";
import { guarded } from "./notices.js";
import { RecommendView } from "./recommend_view.js";
import { showTree } from "./tree_view.js";

const VIEWS = ["recommend", "items", "tree", "model"];

const history = new History();
const filters = new FiltersForm();
const recommend = new RecommendView(history, filters);
const items = new ItemsView(history, recommend);

startKeyDialog();
startHistoryPanel(history);
onKeyChange(load);
onVersion((answer) => {
  if (answer.catalog_items === undefined) return;
  byId("served").textContent = `${counted(answer.catalog_items, "item")} · ${answer.data.name}`;
});
window.addEventListener("hashchange", show);
show();
load();

// Everything that needs the service, again whenever the key changes.
async function load() {
  const [model, declared] = await Promise.all([readModel(), guarded(byId("filter-notice"), () => get("catalog/fields"))]);
  if (model) {
    byId("exclude-seen").checked = model.exclude_seen;
    recommend.offerEvents(Object.keys(model.event_weights));
  }
  if (declared) {
    filters.show(declared.fields);
    items.show(declared.fields);
  }
  await Promise.all([recommend.ask(), sampleUsers(history)]);
}

async function readModel() {
  const model = await guarded(byId("model-notice"), () => get("model"));
  if (model) drawModel(model);
  return model;
}

function show() {
  const [name, ...path] = location.hash.slice(1).split("/");
  const view = VIEWS.includes(name) ? name : "recommend";
  for (const other of VIEWS) byId(`view-${other}`).hidden = other !== view;
  for (const link of document.querySelectorAll(".tabs a")) {
    if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (view === "tree") showTree(path.filter(Boolean).map(Number));
  if (view === "model") readModel();
}
