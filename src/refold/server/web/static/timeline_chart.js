/** The timeline on a canvas: a row per GPU, time to the right; past and running work, and what is planned. */

import { assignOwners, OTHERS_COLOUR, OWNER_COLOURS, Palette } from "./colours.js";
import { fill, h } from "./dom.js";
import { formatDuration, formatIndices, formatMoment, plural } from "./format.js";
import { resourceText, texts } from "./texts.js";
import { drawAxis, LEFT, TOP } from "./time_axis.js";

const labels = texts.timeline;
const NAMES = [...OWNER_COLOURS, "text", "muted", "border", "surface", "bad", "accent", "hover", "on-colour"];
const MIN_DRAG = 6;

/** @typedef {{job: string, tenant: string, user: string, start: number, end: number, rows: number[], kind: "past"|"running"|"planned", ending: string, certain: boolean}} Bar */

export class TimelineChart {
  /** @param {(from: number, to: number) => void} onZoom */
  constructor(onZoom) {
    this._onZoom = onZoom;
    this._bars = [];
    this._nodes = [];
    this._range = [0, 1];
    this._hover = null;
    this._canvas = h("canvas", { class: "timeline-canvas", tabindex: 0, role: "application", "aria-label": labels.title, "aria-describedby": "timeline-help" });
    this._tip = h("div", { class: "tip", hidden: true, "aria-hidden": "true" });
    this._scroll = h("div", { class: "timeline-scroll" }, this._canvas);
    this._legend = h("div", { class: "legend" });
    this.element = h("div", { class: "timeline" }, this._scroll, this._tip, h("p", { id: "timeline-help", class: "hidden-text", text: labels.help }), this._legend);
    this._observer = new ResizeObserver(() => this._draw());
    this._observer.observe(this.element);
    this._onTheme = () => { this._palette = null; this._draw(); };
    window.addEventListener("themechange", this._onTheme);
    this._listen();
  }

  stop() {
    this._observer.disconnect();
    window.removeEventListener("themechange", this._onTheme);
  }

  /** @param {{name: string, gpus: number}[]} nodes @param {Bar[]} bars @param {string} planned what bars of this kind are called */
  update(nodes, bars, now, range, planned = labels.planned) {
    [this._nodes, this._bars, this._now, this._range, this._planned] = [nodes, bars, now, range, planned];
    const tenants = new Set(bars.map((bar) => bar.tenant).filter(Boolean));
    this._ownerOf = (bar) => (tenants.size > 1 ? bar.tenant : bar.user || bar.tenant) || texts.map.others;
    const counts = new Map();
    for (const bar of bars) counts.set(this._ownerOf(bar), (counts.get(this._ownerOf(bar)) ?? 0) + bar.rows.length * (bar.end - bar.start));
    this._owners = assignOwners(counts);
    const running = bars.filter((bar) => bar.kind === "running").length;
    this._canvas.setAttribute("aria-label", labels.summary(bars.filter((bar) => bar.kind === "past").length, running, bars.filter((bar) => bar.kind === "planned").length));
    this._draw();
    this._drawLegend();
  }

  get _rows() {
    return this._nodes.reduce((sum, node) => sum + node.gpus, 0);
  }

  get _rowHeight() {
    return Math.max(2, Math.min(26, Math.floor(560 / Math.max(1, this._rows))));
  }

  _x(moment) {
    const [from, to] = this._range;
    return LEFT + ((moment - from) / (to - from)) * (this._width - LEFT);
  }

  _time(x) {
    const [from, to] = this._range;
    return from + ((x - LEFT) / (this._width - LEFT)) * (to - from);
  }

  _draw() {
    this._width = this._scroll.clientWidth;
    if (!this._width || !this._rows) return;
    this._palette ??= new Palette(NAMES);
    const height = TOP + this._rows * this._rowHeight + 4;
    const scale = window.devicePixelRatio || 1;
    this._canvas.width = this._width * scale;
    this._canvas.height = height * scale;
    this._canvas.style.height = `${height}px`;
    const context = this._canvas.getContext("2d");
    context.scale(scale, scale);
    this._drawNodes(context, height);
    context.save();
    context.beginPath();
    context.rect(LEFT, TOP - 2, this._width - LEFT, height);
    context.clip();
    for (const bar of this._bars) this._drawBar(context, bar);
    this._drawNow(context, height);
    if (this._drag) this._drawSelection(context, height);
    context.restore();
    drawAxis(context, this._palette, this._width, this._range, this._now, (moment) => this._x(moment), height);
  }

  _drawNodes(context, height) {
    let row = 0;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "top";
    let labelled = -Infinity;
    for (const node of this._nodes) {
      const y = TOP + row * this._rowHeight;
      context.fillStyle = this._palette.get("border");
      context.fillRect(0, y - 0.5, this._width, 1);
      if (y - labelled >= 13) {
        context.fillStyle = this._palette.get("muted");
        context.fillText(node.name.length > 11 ? `${node.name.slice(0, 10)}…` : node.name, 0, y + 2);
        labelled = y;
      }
      row += node.gpus;
    }
    context.fillStyle = this._palette.get("border");
    context.fillRect(LEFT - 1, TOP - 4, 1, height);
  }

  _drawBar(context, bar) {
    const x = this._x(bar.start);
    const width = Math.max(1, this._x(bar.end) - x - (this._rowHeight > 6 ? 1 : 0));
    if (x > this._width || x + width < LEFT) return;
    context.globalAlpha = bar.kind === "planned" ? 0.32 : bar.kind === "past" ? 0.62 : 1;
    if (this._hover && this._hover.job === bar.job) context.globalAlpha = Math.min(1, context.globalAlpha + 0.3);
    context.fillStyle = this._palette.get(this._owners.get(this._ownerOf(bar)));
    for (const [first, count] of groups(bar.rows)) {
      const y = TOP + first * this._rowHeight;
      const high = count * this._rowHeight - (this._rowHeight > 4 ? 1.5 : 0.5);
      context.beginPath();
      context.roundRect(x, y, width, high, Math.min(4, high / 3, width / 2));
      context.fill();
      this._drawMarks(context, bar, x, y, width, high);
    }
    context.globalAlpha = 1;
  }

  /** A failed run has a mark at its end; planned work a dashed outline; a bar with room its name. */
  _drawMarks(context, bar, x, y, width, high) {
    if (bar.kind === "planned" && high > 5 && width > 6) {
      context.strokeStyle = context.fillStyle;
      context.globalAlpha = 1;
      context.setLineDash([3, 3]);
      context.strokeRect(x + 0.5, y + 0.5, width - 1, high - 1);
      context.setLineDash([]);
      context.globalAlpha = 0.32;
    }
    if (bar.ending === "failed") {
      const colour = context.fillStyle;
      context.fillStyle = this._palette.get("bad");
      context.globalAlpha = 1;
      context.fillRect(x + width - 3, y, 3, high);
      context.fillStyle = colour;
      context.globalAlpha = 0.62;
    }
    if (high < 14 || width < 44) return;
    context.save();
    context.beginPath();
    context.rect(Math.max(x, LEFT), y, width - 6 - Math.max(0, LEFT - x), high);
    context.clip();
    context.globalAlpha = 1;
    context.fillStyle = this._palette.get(bar.kind === "running" ? "on-colour" : "text");
    context.font = "600 11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.fillText(bar.job, Math.max(x, LEFT) + 6, y + (high < 40 ? high / 2 : 11));
    context.restore();
  }

  _drawNow(context, height) {
    const x = this._x(this._now);
    context.fillStyle = this._palette.get("text");
    context.fillRect(x - 0.75, TOP - 4, 1.5, height);
  }

  _drawSelection(context, height) {
    const [left, right] = [Math.min(...this._drag), Math.max(...this._drag)];
    context.globalAlpha = 0.15;
    context.fillStyle = this._palette.get("accent");
    context.fillRect(left, TOP - 4, right - left, height);
    context.globalAlpha = 1;
  }

  _drawLegend() {
    const entries = [...this._owners].filter(([, name]) => name !== OTHERS_COLOUR).map(([owner, name]) => h("span", { class: "legend-entry" }, h("span", { class: "swatch", style: { background: `var(--${name})` } }), owner));
    const kinds = [["past", labels.past], ["running", labels.running], ["planned", this._planned]].map(([kind, text]) => h("span", { class: "legend-entry" }, h("span", { class: `swatch swatch-${kind}` }), text));
    fill(this._legend, ...kinds, h("span", { class: "legend-gap" }), ...entries);
  }

  // Pointer and keyboard.

  _listen() {
    const canvas = this._canvas;
    canvas.addEventListener("pointerdown", (event) => { if (event.button === 0 && event.pointerType !== "touch") this._drag = [this._at(event)[0], this._at(event)[0]]; });
    canvas.addEventListener("pointermove", (event) => this._move(event));
    canvas.addEventListener("pointerup", (event) => this._release(event));
    canvas.addEventListener("pointerleave", () => { this._drag = null; this._point(null); });
    canvas.addEventListener("keydown", (event) => this._press(event));
  }

  _at(event) {
    const { left, top } = this._canvas.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  }

  _find([x, y]) {
    const row = Math.floor((y - TOP) / this._rowHeight);
    const moment = this._time(x);
    return this._bars.findLast((bar) => bar.start <= moment && moment <= bar.end && bar.rows.includes(row)) ?? null;
  }

  _move(event) {
    const at = this._at(event);
    if (this._drag) {
      this._drag[1] = at[0];
      this._draw();
    } else this._point(this._find(at), at);
  }

  _release(event) {
    const drag = this._drag;
    this._drag = null;
    if (drag && Math.abs(drag[1] - drag[0]) >= MIN_DRAG) {
      this._onZoom(this._time(Math.min(...drag)), this._time(Math.max(...drag)));
      return;
    }
    const bar = this._find(this._at(event));
    if (bar) location.hash = `#/jobs/${encodeURIComponent(bar.job)}`;
  }

  _press(event) {
    const [from, to] = this._range;
    const length = to - from;
    const ranges = { ArrowLeft: [from - length / 4, to - length / 4], ArrowRight: [from + length / 4, to + length / 4], "+": [from + length / 4, to - length / 4], "=": [from + length / 4, to - length / 4], "-": [from - length / 2, to + length / 2] };
    if (!ranges[event.key]) return;
    event.preventDefault();
    this._onZoom(...ranges[event.key]);
  }

  _point(bar, at = [0, 0]) {
    if (bar !== this._hover) {
      this._hover = bar;
      this._draw();
    }
    this._canvas.classList.toggle("pointing", Boolean(bar));
    this._tip.hidden = !bar;
    if (!bar) return;
    const owner = [bar.user, bar.tenant].filter(Boolean).join(" · ");
    const when = `${formatMoment(bar.start, this._now)}–${bar.kind === "running" && !bar.certain ? "?" : formatMoment(bar.end, this._now)}`;
    fill(this._tip, h("strong", { text: bar.job }), h("span", { text: owner }), h("span", { text: `${when} · ${formatDuration(bar.end - bar.start)}` }), h("span", { text: resourceText(`${plural(bar.rows.length, "GPU")} · ${this._place(bar)}`) }), h("span", { text: (bar.kind === "planned" ? this._planned : labels[bar.kind]) + (bar.ending ? `, ${bar.ending}` : "") }));
    const right = at[0] > this._width / 2;
    this._tip.style.left = right ? "auto" : `${at[0] + 14}px`;
    this._tip.style.right = right ? `${this._width - at[0] + 14}px` : "auto";
    this._tip.style.top = `${Math.max(0, at[1] - this._scroll.scrollTop)}px`;
  }

  _place(bar) {
    if (bar.kind === "planned" && this._planned === labels.planned) return labels.notChosen;
    let row = 0;
    const parts = [];
    for (const node of this._nodes) {
      const own = bar.rows.filter((one) => one >= row && one < row + node.gpus).map((one) => one - row);
      if (own.length) parts.push(`${node.name} (${formatIndices(own)})`);
      row += node.gpus;
    }
    return parts.slice(0, 3).join(", ") + (parts.length > 3 ? " …" : "");
  }
}

/** Runs of adjacent rows: [3, 4, 5, 9] is [[3, 3], [9, 1]]. */
function groups(rows) {
  const found = [];
  for (const row of rows) {
    const last = found[found.length - 1];
    if (last && last[0] + last[1] === row) last[1] += 1;
    else found.push([row, 1]);
  }
  return found;
}
