// Asks for the API key. It is kept by `api.js` for this tab alone and never written into the page.

import { key, setKey } from "./api.js";
import { byId } from "./dom.js";

const changed = new Set();

/** Call `listener` when another key is in use. */
export function onKeyChange(listener) {
  changed.add(listener);
}

/** Open the dialog. */
export function askForKey() {
  byId("key-value").value = key();
  byId("key-dialog").showModal();
  byId("key-value").focus();
}

/** Make the header's button and the dialog work. */
export function startKeyDialog() {
  byId("key-open").addEventListener("click", askForKey);
  byId("key-cancel").addEventListener("click", close);
  byId("key-forget").addEventListener("click", () => use(""));
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    use(byId("key-value").value.trim());
  });
  label();
}

function use(value) {
  setKey(value);
  label();
  close();
  for (const listener of changed) listener();
}

function close() {
  byId("key-value").value = "";
  byId("key-dialog").close();
}

function label() {
  byId("key-open").textContent = key() ? "API key set" : "API key";
}
