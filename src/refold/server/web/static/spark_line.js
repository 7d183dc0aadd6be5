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

  /** Add the present value; null: not known. `expected`: a value to compare with, drawn as a dashed line. */
  add(value, expected = null) {
    if (value === null || value === undefined) return;
    this._expected = expected;
    this._values = [...this._values, value].slice(-MAX_VALUES);
    this.element.hidden = false;
    this._figure.textContent = `${formatPrecise(value)}${this._unit}`;
    if (this._values.length > 1) fill(this._drawing, this._line());
  }

  _line() {
    const shown = this._expected ? [...this._values, this._expected] : this._values;
    const [low, high] = [Math.min(...shown), Math.max(...shown)];
    const y = (value) => (HEIGHT - 4 - ((value - low) / (high - low || 1)) * (HEIGHT - 8)).toFixed(1);
    const step = WIDTH / (this._values.length - 1);
    const points = this._values.map((value, index) => `${(index * step).toFixed(1)},${y(value)}`);
    const expected = this._expected ? svg("line", { class: "expected", x1: 0, x2: WIDTH, y1: y(this._expected), y2: y(this._expected) }) : null;
    return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${this._label}: ${formatPrecise(low)} – ${formatPrecise(high)}` }, expected, svg("polyline", { points: points.join(" ") }));
  }
}
