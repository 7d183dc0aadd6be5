/** Allocation beside utilisation: how many GPUs jobs held, and how busy the GPUs were. */

import { Palette } from "./colours.js";
import { h } from "./dom.js";
import { formatWhole, plural } from "./format.js";
import { resourceText, texts } from "./texts.js";
import { drawAxis, LEFT, TOP } from "./time_axis.js";

const HEIGHT = 130;
const SAMPLES = 400;

/** How many GPUs were allocated at equally spaced times. @param {any[]} bars @param {[number, number]} range */
export function allocated(bars, [from, to], until) {
  const changes = bars.filter((bar) => bar.kind !== "planned").flatMap((bar) => [[bar.start, bar.rows.length], [Math.min(bar.end, bar.kind === "running" ? Infinity : bar.end), -bar.rows.length]]);
  changes.sort((a, b) => a[0] - b[0]);
  const values = [];
  let [next, sum] = [0, 0];
  for (let sample = 0; sample <= SAMPLES; sample += 1) {
    const moment = from + ((to - from) * sample) / SAMPLES;
    if (moment > until) break;
    while (next < changes.length && changes[next][0] <= moment) sum += changes[next++][1];
    values.push([moment, sum]);
  }
  return values;
}

export class UseChart {
  constructor() {
    this._canvas = h("canvas", { class: "use-canvas", role: "img", "aria-label": texts.timeline.use });
    const legend = h(
      "div", { class: "legend" }, h("span", { class: "legend-entry" }, h("span", { class: "swatch swatch-allocated" }), texts.timeline.allocated),
      h("span", { class: "legend-entry" }, h("span", { class: "swatch swatch-busy" }), texts.timeline.busy),
    );
    this.element = h("div", { class: "use-chart" }, this._canvas, legend);
    this._observer = new ResizeObserver(() => this._draw());
    this._observer.observe(this.element);
    this._onTheme = () => this._draw();
    window.addEventListener("themechange", this._onTheme);
  }

  stop() {
    this._observer.disconnect();
    window.removeEventListener("themechange", this._onTheme);
  }

  update(bars, busy, total, now, range) {
    this._data = { held: allocated(bars, range, now), busy, total, now, range };
    const last = this._data.held[this._data.held.length - 1];
    this._canvas.setAttribute("aria-label", texts.timeline.useSummary(formatWhole(last?.[1] ?? 0), formatWhole(total), busy.length ? formatWhole(busy[busy.length - 1][1]) : "–"));
    this._draw();
  }

  _draw() {
    const width = this.element.clientWidth;
    if (!width || !this._data) return;
    const palette = new Palette(["text", "muted", "border", "accent", "accent-soft", "owner-2", "surface"]);
    const { held, busy, total, now, range } = this._data;
    const scale = window.devicePixelRatio || 1;
    this._canvas.width = width * scale;
    this._canvas.height = HEIGHT * scale;
    this._canvas.style.height = `${HEIGHT}px`;
    const context = this._canvas.getContext("2d");
    context.scale(scale, scale);
    const x = (moment) => LEFT + ((moment - range[0]) / (range[1] - range[0])) * (width - LEFT);
    const y = (gpus) => HEIGHT - 4 - (Math.min(gpus, total) / Math.max(1, total)) * (HEIGHT - TOP - 4);
    context.fillStyle = palette.get("muted");
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    for (const share of [0, 0.5, 1]) {
      context.fillStyle = palette.get("border");
      context.fillRect(LEFT, y(share * total), width - LEFT, 1);
      context.fillStyle = palette.get("muted");
      context.fillText(resourceText(plural(Math.round(share * total), "GPU")), 0, y(share * total) - (share === 1 ? -4 : share === 0 ? 5 : 0));
    }
    drawAxis(context, palette, width, range, now, x, HEIGHT);
    line(context, held, x, y, palette.get("accent"), palette.get("accent-soft"), HEIGHT - 4);
    line(context, busy.filter(([at]) => at >= range[0] && at <= range[1]), x, y, palette.get("owner-2"));
  }
}

function line(context, points, x, y, colour, area = null, bottom = 0) {
  if (points.length < 2) return;
  context.beginPath();
  points.forEach(([at, value], index) => (index ? context.lineTo(x(at), y(value)) : context.moveTo(x(at), y(value))));
  context.strokeStyle = colour;
  context.lineWidth = 1.8;
  context.stroke();
  if (!area) return;
  context.lineTo(x(points[points.length - 1][0]), bottom);
  context.lineTo(x(points[0][0]), bottom);
  context.fillStyle = area;
  context.globalAlpha = 0.6;
  context.fill();
  context.globalAlpha = 1;
}
