// The history that recommendations are asked for: a user's stored one, or a draft made here. It draws nothing.
//
// Editing a stored history makes a draft of it: the store changes by events alone, never behind a person's back.

import { get, segment } from "./api.js";
import { remember } from "./item_titles.js";

const MAX_DRAFT = 200;

export class History extends EventTarget {
  userId = null;
  itemIds = [];
  stored = true;
  /** What came last; shown as new once. */
  fresh = new Set();

  /** Whose history a request should use. */
  request() {
    if (!this.stored) return { history: this.itemIds };
    return this.userId === null ? {} : { user_id: this.userId };
  }

  /** Read a user's stored history. */
  async load(userId, { fresh = [] } = {}) {
    const answer = await get(`users/${segment(userId)}/history`);
    // an item of the history that is not in the catalogue comes without a title
    remember(answer.events.map(({ item_id, title = null }) => ({ item_id, title })));
    this.#set({ userId, itemIds: answer.events.map((event) => event.item_id), stored: true, fresh: new Set(fresh) });
  }

  /** Add an item as the newest. */
  add(item) {
    remember([item]);
    this.#draft([...this.itemIds, item.item_id].slice(-MAX_DRAFT), [item.item_id]);
  }

  /** Use these items, oldest first, instead. */
  replace(items) {
    remember(items);
    this.#draft(items.map((item) => item.item_id));
  }

  remove(index) {
    this.#draft(this.itemIds.toSpliced(index, 1));
  }

  /** Exchange an item with the next newer (+1) or older (-1) one. */
  move(index, step) {
    const target = index + step;
    if (target < 0 || target >= this.itemIds.length) return;
    const itemIds = [...this.itemIds];
    [itemIds[index], itemIds[target]] = [itemIds[target], itemIds[index]];
    this.#draft(itemIds);
  }

  clear() {
    this.#set({ userId: null, itemIds: [], stored: true, fresh: new Set() });
  }

  #draft(itemIds, fresh = []) {
    if (itemIds.length === 0 && this.userId === null) this.clear();
    else this.#set({ userId: this.userId, itemIds, stored: false, fresh: new Set(fresh) });
  }

  #set(state) {
    Object.assign(this, state);
    this.dispatchEvent(new Event("change"));
  }
}
