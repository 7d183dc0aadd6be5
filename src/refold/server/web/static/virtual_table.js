/** A table of any length, of which only the visible rows exist. Rows are loaded in pages, when they are seen. */

import { h, setAttribute } from "./dom.js";
import { texts } from "./texts.js";

const PAGE = 100;
/** Rows beyond the edges that exist too, so that scrolling shows no gaps. */
const MARGIN = 6;
const KEPT_PAGES = 8;
const HEAD_HEIGHT = 30;
const RETRY_MILLISECONDS = 2000;

/** @typedef {{key: string, label: string, class?: string}} Column */

export class VirtualTable {
  /**
   * @param {{
   *   label: string, columns: Column[], empty: string, rowHeight?: number, narrowRowHeight?: number, maxRows?: number,
   *   load: (after: number, limit: number, signal: AbortSignal|undefined) => Promise<{jobs: any[], total: number}>,
   *   render: (cells: HTMLElement[], row: any) => void,
   * }} options `render` fills the cells of a row, which are used again for other rows
   */
  constructor(options) {
    this._options = options;
    this._pages = new Map();
    this._loading = new Map();
    this._total = null;
    this._pool = [];
    this._version = 0;
    this._narrow = window.matchMedia("(max-width: 640px)");
    const { label, columns } = options;
    const header = h("div", { class: "vt-row vt-head", role: "row", "aria-rowindex": 1 }, ...columns.map(
      (column) => h("span", { role: "columnheader", class: `vt-cell col-${column.key} ${column.class ?? ""}`, text: column.label }),
    ));
    this._space = h("div", { class: "vt-space", role: "rowgroup" });
    const head = h("div", { role: "rowgroup", class: "vt-heads" }, header);
    this._scroller = h("div", { class: "vt-scroll", tabindex: 0, role: "table", "aria-label": label, hidden: true }, head, this._space);
    this._empty = h("p", { class: "empty", text: texts.jobs.loading });
    this.element = h("div", { class: "vt" }, this._scroller, this._empty);
    this._scroller.addEventListener("scroll", () => this._schedule(), { passive: true });
    this._observer = new ResizeObserver(() => this._schedule());
    this._observer.observe(this._scroller);
    this._onNarrow = () => this._draw();
    this._narrow.addEventListener("change", this._onNarrow);
  }

  get total() {
    return this._total;
  }

  get _rowHeight() {
    const { rowHeight = 48, narrowRowHeight = 76 } = this._options;
    return this._narrow.matches ? narrowRowHeight : rowHeight;
  }

  /** Load the visible rows again; the others are loaded when they are seen. @param {AbortSignal} [signal] */
  async refresh(signal) {
    const [first, last] = this._visiblePages();
    this._version += 1;
    const pages = new Map();
    for (let page = first; page <= last; page += 1) pages.set(page, await this._fetch(page, signal));
    const [seenFirst, seenLast] = this._visiblePages(); // the table may have been scrolled meanwhile
    for (const [page, rows] of this._pages) if (page >= seenFirst && page <= seenLast && !pages.has(page)) pages.set(page, rows);
    this._pages = pages;
    this._draw();
  }

  /** Begin at the first row, as after another search. */
  async reset(signal) {
    this._scroller.scrollTop = 0;
    this._pages.clear();
    await this.refresh(signal);
  }

  stop() {
    this._stopped = true;
    this._observer.disconnect();
    this._narrow.removeEventListener("change", this._onNarrow);
  }

  async _fetch(page, signal) {
    const answer = await this._options.load(page * PAGE, PAGE, signal);
    this._total = answer.total;
    return answer.jobs;
  }

  _visibleRows() {
    const height = this._rowHeight;
    const first = Math.max(0, Math.floor(this._scroller.scrollTop / height) - MARGIN);
    const count = Math.ceil(this._scroller.clientHeight / height) + 2 * MARGIN;
    return [first, Math.min(this._total ?? 0, first + count)];
  }

  _visiblePages() {
    const [first, end] = this._visibleRows();
    return [Math.floor(first / PAGE), Math.floor(Math.max(first, end - 1) / PAGE)];
  }

  _schedule() {
    if (this._frame) return;
    this._frame = requestAnimationFrame(() => {
      this._frame = 0;
      this._draw();
    });
  }

  _draw() {
    if (this._stopped) return;
    const total = this._total ?? 0;
    this._empty.hidden = total > 0;
    this._scroller.hidden = total === 0;
    if (this._total === 0) this._empty.textContent = this._options.empty;
    const { maxRows = 10 } = this._options;
    this._space.style.height = `${total * this._rowHeight}px`;
    this._scroller.style.maxHeight = `${maxRows * this._rowHeight + (this._narrow.matches ? 0 : HEAD_HEIGHT)}px`;
    setAttribute(this._scroller, "aria-rowcount", total + 1);
    const [first, end] = this._visibleRows();
    for (let index = first; index < end; index += 1) this._drawRow(index, index - first);
    for (const { element } of this._pool.slice(end - first)) element.hidden = true;
    this._loadMissing();
  }

  _drawRow(index, slot) {
    const entry = (this._pool[slot] ??= this._makeRow());
    const row = this._pages.get(Math.floor(index / PAGE))?.[index % PAGE];
    entry.element.hidden = false;
    entry.element.style.transform = `translateY(${index * this._rowHeight}px)`;
    entry.element.style.height = `${this._rowHeight}px`;
    setAttribute(entry.element, "aria-rowindex", index + 2);
    entry.element.classList.toggle("loading", !row);
    if (row) this._options.render(entry.cells, row);
    else for (const cell of entry.cells) cell.replaceChildren();
  }

  _makeRow() {
    const cells = this._options.columns.map(
      (column) => h("span", { role: "cell", class: `vt-cell col-${column.key} ${column.class ?? ""}` }),
    );
    const element = h("div", { class: "vt-row", role: "row" }, ...cells);
    this._space.append(element);
    return { element, cells };
  }

  _loadMissing() {
    if (!this._total) return;
    const [first, last] = this._visiblePages();
    for (let page = first; page <= last; page += 1) {
      if (this._pages.has(page) || this._loading.has(page)) continue;
      const version = this._version;
      const loading = this._fetch(page).then((rows) => {
        this._loading.delete(page);
        if (version === this._version || !this._pages.has(page)) this._pages.set(page, rows);
        this._dropFarPages(page);
        this._draw();
      }).catch(() => window.setTimeout(() => {
        this._loading.delete(page);
        this._draw();
      }, RETRY_MILLISECONDS));
      this._loading.set(page, loading);
    }
  }

  /** Keep memory flat: pages far from the visible ones are loaded again when they are seen. */
  _dropFarPages(near) {
    const far = [...this._pages.keys()].sort((a, b) => Math.abs(b - near) - Math.abs(a - near));
    for (const page of far.slice(0, Math.max(0, far.length - KEPT_PAGES))) this._pages.delete(page);
  }
}
