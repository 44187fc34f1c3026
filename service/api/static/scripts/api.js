// The HTTP calls. Every failure leaves here as a `Problem`, so that no view has to guess what to show.

const KEY_NAME = "groundrec.key";
const base = new URL("v1/", document.baseURI);
const listeners = new Set();

/** What went wrong, as the service's problem document says it. */
export class Problem extends Error {
  constructor({ title, detail, status = 0, errors = [], request_id: requestId = "" }, retryAfter = null) {
    super(detail || title);
    this.title = title;
    this.detail = detail;
    this.status = status;
    this.errors = errors;
    this.requestId = requestId;
    this.retryAfter = retryAfter;
  }
}

/** The key of this tab, "" when there is none. */
export function key() {
  return sessionStorage.getItem(KEY_NAME) ?? "";
}

/** Use another key from now on; "" forgets it. */
export function setKey(value) {
  if (value) sessionStorage.setItem(KEY_NAME, value);
  else sessionStorage.removeItem(KEY_NAME);
}

/** Tell `listener` the catalogue version whenever an answer names one. */
export function onVersion(listener) {
  listeners.add(listener);
}

export const get = (path, query = {}, options = {}) => call("GET", path, { ...options, query });
export const post = (path, body, options = {}) => call("POST", path, { ...options, body });
export const remove = (path) => call("DELETE", path, {});

/** A path segment made of somebody's id. */
export const segment = (id) => encodeURIComponent(id);

async function call(method, path, { query = {}, body, signal }) {
  const url = new URL(`./${path}`, base); // "./", because "users:sample" would be a scheme
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, value);
  }
  const headers = { accept: "application/json" };
  if (body !== undefined) headers["content-type"] = "application/json";
  if (key()) headers.authorization = `Bearer ${key()}`;
  const response = await send(url, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
  const content = await read(response);
  if (!response.ok) throw new Problem(content, response.headers.get("retry-after"));
  if (content?.catalog_version !== undefined) for (const listener of listeners) listener(content);
  return content;
}

async function send(url, options) {
  try {
    return await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (options.headers.authorization && error instanceof TypeError && !/^[\x20-\x7e]+$/.test(key())) {
      throw new Problem({ title: "The key cannot be sent", detail: "An API key has only letters, digits and signs of ASCII." });
    }
    throw new Problem({ title: "No answer", detail: "The service did not answer. Is it running, and can this page reach it?" });
  }
}

async function read(response) {
  if (response.status === 204) return {};
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    const title = `The answer could not be read (status ${response.status})`;
    if (!response.ok) return { title, detail: response.statusText || title, status: response.status };
    throw new Problem({ title, detail: "It is not JSON; a proxy may stand between this page and the service." });
  }
}
