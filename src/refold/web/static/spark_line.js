/** A small line of the latest values, as SVG. */

import { fill, h, svg } from "./dom.js";
import { formatPrecise } from "./format.js";

const [WIDTH, HEIGHT] = [240, 44];
const MAX_VALUES = 400;

export class SparkLine {
  constructor(label, unit = "") {
    this._label = label;
    this._unit = unit;
    this._values = [];
    this._figure = h("span", { class: "figure" });
    this._drawing = h("div", { class: "spark-drawing" });
    this.element = h("div", { class: "spark", hidden: true }, h("span", { class: "stat-label", text: label }), this._figure, this._drawing);
  }

  /** Add the present value; null: not known. */
  add(value) {
    if (value === null || value === undefined) return;
    this._values = [...this._values, value].slice(-MAX_VALUES);
    this.element.hidden = false;
    this._figure.textContent = `${formatPrecise(value)}${this._unit}`;
    if (this._values.length > 1) fill(this._drawing, this._line());
  }

  _line() {
    const [low, high] = [Math.min(...this._values), Math.max(...this._values)];
    const step = WIDTH / (this._values.length - 1);
    const points = this._values.map((value, index) => `${(index * step).toFixed(1)},${(HEIGHT - 4 - ((value - low) / (high - low || 1)) * (HEIGHT - 8)).toFixed(1)}`);
    return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${this._label}: ${formatPrecise(low)} – ${formatPrecise(high)}` }, svg("polyline", { points: points.join(" ") }));
  }
}
