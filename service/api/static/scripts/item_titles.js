// What items are called, remembered from whatever answer named them; for places that know ids only.

const known = new Map();

/** Remember the titles in an answer; `null` says that the catalogue has no such item. */
export function remember(items) {
  for (const item of items) if (item.title !== undefined) known.set(item.item_id, item.title);
}

/** The title, or the id where no title is known. */
export function titleOf(itemId) {
  return known.get(itemId) || itemId;
}

/** Whether the catalogue had no such item when it was asked last. */
export function isUnknown(itemId) {
  return known.get(itemId) === null;
}
