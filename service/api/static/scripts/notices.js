// What a person is told when something did not go as asked: a problem document, whole, or one sentence.

import { button, el, said } from "./dom.js";
import { askForKey } from "./key_dialog.js";
import { Problem } from "./api.js";

/** One sentence in a box; `kind` is "good", "warn" or "bad". */
export function notice(kind, text, ...more) {
  return el("div", { class: `notice ${kind}`, role: kind === "bad" ? "alert" : "status" }, el("p", {}, text), ...more);
}

/** Show an error where the answer would have stood. A cancelled call is none. */
export function showError(place, error) {
  if (error.name === "AbortError") return;
  if (!(error instanceof Problem)) console.error(error);
  const problem = error instanceof Problem ? error : new Problem({ title: "The page failed", detail: String(error.message) });
  place.replaceChildren(problemNotice(problem));
}

/** Run `action`; its error, if any, is shown in `place`, and otherwise the place is cleared. */
export async function guarded(place, action) {
  try {
    const result = await action();
    place.replaceChildren();
    return result;
  } catch (error) {
    showError(place, error);
    return undefined;
  }
}

function problemNotice(problem) {
  const fields = problem.errors.filter((one) => one.detail && one.detail !== problem.detail);
  return el(
    "div",
    { class: "notice bad", role: "alert" },
    el("p", {}, el("strong", {}, said(problem.title ?? "Error")), problem.detail !== problem.title && [": ", said(problem.detail)]),
    fields.length > 0 && el("ul", {}, fields.map((one) => el("li", {}, el("code", {}, said(one.pointer || "/")), " ", said(one.detail)))),
    problem.retryAfter && el("p", { class: "hint" }, `Try again in ${problem.retryAfter} s.`),
    problem.requestId && el("p", { class: "hint" }, "Request ", el("code", {}, said(problem.requestId))),
    [401, 403].includes(problem.status) && button("Enter an API key", askForKey),
  );
}
