/** A small line of values over time, as SVG. */

import { fill, h, svg } from "./dom.js";
import { formatPrecise, formatDuration } from "./format.js";

const [WIDTH, HEIGHT] = [240, 44];

export class SparkLine {
  /** @param {string} label @param {(value: number) => string} format */
  constructor(label, format = formatPrecise) {
    this._label = label;
    this._format = format;
    this._figure = h("span", { class: "figure" });
    this._drawing = h("div", { class: "spark-drawing" });
    this.element = h("div", { class: "spark", hidden: true }, h("span", { class: "stat-label", text: label }), this._figure, this._drawing);
  }

  /** Show values at Unix times; null: not known. `expected`: a value to compare with, drawn as a dashed line. */
  show(points, expected = null) {
    const known = points.filter(([, value]) => value !== null && value !== undefined);
    this.element.hidden = !known.length;
    if (!known.length) return;
    this._figure.textContent = this._format(known[known.length - 1][1]);
    fill(this._drawing, known.length > 1 ? this._line(known, expected) : null);
  }

  _line(points, expected) {
    const values = points.map(([, value]) => value);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const [bottom, top] = [Math.min(low, expected ?? low), Math.max(high, expected ?? high)];
    const [from, to] = [points[0][0], points[points.length - 1][0]];
    const y = (value) => (HEIGHT - 4 - ((value - bottom) / (top - bottom || 1)) * (HEIGHT - 8)).toFixed(1);
    const x = (at) => (((at - from) / (to - from || 1)) * WIDTH).toFixed(1);
    const line = expected === null ? null : svg("line", { class: "expected", x1: 0, x2: WIDTH, y1: y(expected), y2: y(expected) });
    const range = `${this._format(low)} – ${this._format(high)}, ${formatDuration(to - from)}`;
    return h(
      "div", {}, svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${this._label}: ${range}` }, line, svg("polyline", { points: points.map(([at, value]) => `${x(at)},${y(value)}`).join(" ") })),
      h("span", { class: "sub", text: range }),
    );
  }
}
