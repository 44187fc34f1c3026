// Builds elements. Text from outside only ever becomes a text node; there is no way here to hand in markup.

/**
 * An element with attributes and children.
 * `class`, `on` (listeners) and `vars` (CSS custom properties) are special; `false`, `null` and `undefined` are left out.
 */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (name === "vars") for (const [key, setting] of Object.entries(value)) node.style.setProperty(key, setting);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** The element with this id; a page without it is a bug that must be loud. */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found;
}

/** A stranger's text, its writing direction kept from leaking into what stands beside it. */
export function said(text, attributes = {}) {
  return el("bdi", attributes, String(text));
}

/** Text for a screen reader alone. */
export function unseen(text) {
  return el("span", { class: "sr" }, text);
}

/** A button that does one thing. */
export function button(text, onClick, attributes = {}) {
  return el("button", { type: "button", ...attributes, on: { click: onClick } }, text);
}

/** A function that runs once the calls to it have paused. */
export function paused(milliseconds, action) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), milliseconds);
  };
}

/** "1 item", "2 items"; large numbers are grouped. */
export function counted(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}
