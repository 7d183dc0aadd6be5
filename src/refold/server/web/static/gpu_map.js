/** The map of all GPUs, on a canvas: colours by owner or reading, a description on hover and by keyboard. */

import { assignOwners, OTHERS_COLOUR, OWNER_COLOURS, Palette, SCALE_COLOURS, scaleColour } from "./colours.js";
import { segmented } from "./controls.js";
import { fill, h } from "./dom.js";
import { formatGib, formatPercent, formatWhole, plural } from "./format.js";
import { layOut } from "./gpu_layout.js";
import { texts } from "./texts.js";

const labels = texts.map;
const WANTED_HEIGHT = 400;
const NAMES = [...OWNER_COLOURS, ...SCALE_COLOURS, "text", "muted", "border", "free", "surface", "down", "accent", "on-colour"];

/** How each reading is coloured and written. */
const READINGS = {
  utilisation: { of: (gpu) => gpu.utilisation, low: 0, high: 100, write: (value) => `${formatWhole(value)} %` },
  memory: {
    of: (gpu) => (gpu.memory_mib ? (100 * gpu.memory_used_mib) / gpu.memory_mib : null), low: 0, high: 100,
    write: (value) => `${formatWhole(value)} %`,
  },
  celsius: { of: (gpu) => gpu.celsius, low: 30, high: 90, write: (value) => `${formatWhole(value)} °C` },
  watts: { of: (gpu) => gpu.watts, low: 50, high: 700, write: (value) => `${formatWhole(value)} W` },
};

export class GpuMap {
  constructor() {
    this._mode = "owner";
    this._nodes = [];
    this._layout = { cells: [], labels: [], height: 0, size: 0 };
    this._current = -1;
    this._hidden = new Set();
    this._canvas = h("canvas", { class: "gpu-canvas", tabindex: 0, role: "application", "aria-label": labels.title, "aria-describedby": "gpu-map-help" });
    this._tip = h("div", { class: "tip", hidden: true, "aria-hidden": "true" });
    this._spoken = h("p", { class: "hidden-text", "aria-live": "polite" });
    this._legend = h("div", { class: "legend" });
    this.modes = segmented(labels.by, labels.modes, this._mode, (mode) => {
      this._mode = mode;
      this._draw();
    });
    const help = h("p", { class: "hidden-text", id: "gpu-map-help", text: labels.help });
    this.element = h("div", { class: "gpu-map" }, this._canvas, this._tip, this._spoken, help, this._legend);
    this._observer = new ResizeObserver(() => this._draw());
    this._observer.observe(this.element);
    this._onTheme = () => {
      this._palette = null;
      this._draw();
    };
    window.addEventListener("themechange", this._onTheme);
    this._listen();
  }

  stop() {
    this._observer.disconnect();
    window.removeEventListener("themechange", this._onTheme);
  }

  /** @param {any[]} gpus @param {any[]} nodes */
  update(gpus, nodes) {
    const byNode = new Map(nodes.map((node) => [node.name, { ...node, gpus: [] }]));
    for (const gpu of gpus) byNode.get(gpu.node)?.gpus.push(gpu);
    this._nodes = [...byNode.values()].filter((node) => node.gpus.length);
    for (const node of this._nodes) node.path = Object.values(node.domains ?? {});
    for (const node of this._nodes) if (!node.path.length && node.rack) node.path = [node.rack];
    this._nodes.sort((a, b) => a.path.join("/").localeCompare(b.path.join("/"), "en", { numeric: true }));
    const used = gpus.filter((gpu) => gpu.jobs.length).length;
    this._canvas.setAttribute("aria-label", labels.summary(formatWhole(used), formatWhole(gpus.length), plural(nodes.length, "node")));
    this._hideModesWithoutReadings(gpus);
    const isFirst = !this._layout.cells.length;
    this._draw();
    if (isFirst && document.activeElement === this._canvas) this._select(0, true); // the focus was there before the GPUs
  }

  _hideModesWithoutReadings(gpus) {
    for (const button of this.modes.element.children) {
      const reading = READINGS[button.dataset.value];
      button.hidden = Boolean(reading) && !gpus.some((gpu) => reading.of(gpu) !== null && reading.of(gpu) !== undefined);
    }
    this.modes.element.hidden = [...this.modes.element.children].every((button) => button.hidden || button.dataset.value === "owner");
  }

  _ownerOf(gpu) {
    return (this._byTenant ? gpu.tenant : gpu.user || gpu.tenant) || labels.others;
  }

  _draw() {
    const width = this.element.clientWidth;
    if (!width || !this._nodes.length) return;
    this._palette ??= new Palette(NAMES);
    this._layout = layOut(this._nodes, width, WANTED_HEIGHT);
    const scale = window.devicePixelRatio || 1;
    const { cells, labels: names, height } = this._layout;
    this._canvas.width = width * scale;
    this._canvas.height = height * scale;
    this._canvas.style.height = `${height}px`;
    const context = this._canvas.getContext("2d");
    context.scale(scale, scale);
    this._assignColours(cells);
    for (const label of names) this._drawLabel(context, label);
    for (let first = 0, last; first < cells.length; first = last + 1) {
      last = first;
      while (joins(cells[last], cells[last + 1])) last += 1;
      this._drawCells(context, cells.slice(first, last + 1));
    }
    if (this._current >= 0 && cells[this._current]) this._drawFocus(context, cells[this._current]);
    this._drawLegend();
  }

  _assignColours(cells) {
    this._byTenant = new Set(cells.map(({ gpu }) => gpu.tenant).filter(Boolean)).size > 1;
    const counts = new Map();
    for (const { gpu } of cells) {
      if (gpu.jobs.length) counts.set(this._ownerOf(gpu), (counts.get(this._ownerOf(gpu)) ?? 0) + 1);
    }
    this._owners = assignOwners(counts);
    this._counts = counts;
  }

  _colourOf(gpu) {
    const reading = READINGS[this._mode];
    if (reading) {
      const value = reading.of(gpu);
      return value === null || value === undefined ? null : scaleColour(value, reading.low, reading.high);
    }
    return gpu.jobs.length ? this._owners.get(this._ownerOf(gpu)) : null;
  }

  /** Draw the name of a node; before that of the first node of a domain, such as a rack, the domain. */
  _drawLabel(context, { x, y, width, text, domain }) {
    context.fillStyle = this._palette.get(domain ? "text" : "muted");
    context.font = `${domain ? "600 " : ""}11px system-ui, sans-serif`;
    context.textBaseline = "top";
    context.textAlign = "left";
    const both = domain ? `${domain} · ${text}` : text;
    context.fillText(shorten(context, context.measureText(both).width > width ? domain || text : both, width), x, y + 1);
  }

  /** Draw the GPUs of one job on a node as one bar; all others one by one. */
  _drawCells(context, cells) {
    const { x, y, height, gpu } = cells[0];
    const end = cells[cells.length - 1];
    const joined = this._mode === "owner";
    const radius = Math.min(6, height / 4);
    const parts = joined ? [[x, end.x + end.width - x, gpu]] : cells.map((cell) => [cell.x, cell.width, cell.gpu]);
    for (const [left, width, one] of parts) {
      const colour = this._colourOf(one);
      context.beginPath();
      context.roundRect(left, y, width, height, radius);
      context.fillStyle = this._palette.get(colour ?? "free");
      context.fill();
      if (!colour) {
        context.strokeStyle = this._palette.get("border");
        context.lineWidth = 1;
        context.stroke();
      } else if (joined && one.free > 0) this._drawFreePart(context, left, y, width, height, one.free);
      if (one.drain_reason) this._drawHatch(context, left, y, width, height, radius);
    }
    if (height >= 26) for (const cell of cells) this._drawFigure(context, cell);
  }

  /** The part of a shared GPU that nobody has is drawn in the colour of free ones, from the top. */
  _drawFreePart(context, x, y, width, height, free) {
    context.save();
    context.clip();
    context.fillStyle = this._palette.get("free");
    context.globalAlpha = 0.75;
    context.fillRect(x, y, width, height * Math.min(1, free));
    context.restore();
  }

  _drawHatch(context, x, y, width, size, radius) {
    context.save();
    context.beginPath();
    context.roundRect(x, y, width, size, radius);
    context.clip();
    context.strokeStyle = this._palette.get("down");
    context.lineWidth = size > 16 ? 2 : 1.3;
    const step = size > 16 ? 7 : 4;
    context.beginPath();
    for (let offset = -size; offset < width; offset += step) {
      context.moveTo(x + offset, y + size);
      context.lineTo(x + offset + size, y);
    }
    context.stroke();
    context.restore();
  }

  _drawFigure(context, { x, y, width, height, gpu }) {
    if (this._mode === "owner" && !gpu.jobs.length) return;
    const reading = READINGS[this._mode] ?? READINGS.utilisation;
    const value = reading.of(gpu);
    const text = value === null || value === undefined ? String(gpu.index) : formatWhole(value);
    const colour = this._colourOf(gpu);
    const isPale = READINGS[this._mode] && value !== null && (value - reading.low) / (reading.high - reading.low) < 0.5;
    context.fillStyle = this._palette.get(!colour || isPale ? "muted" : "on-colour");
    context.font = `600 ${height > 40 ? 13 : 11}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(text, x + width / 2, y + height / 2 + 0.5);
  }

  _drawFocus(context, { x, y, width, height }) {
    context.strokeStyle = this._palette.get("text");
    context.lineWidth = 2;
    context.beginPath();
    context.roundRect(x - 1.5, y - 1.5, width + 3, height + 3, Math.min(7, height / 4 + 1));
    context.stroke();
  }

  _drawLegend() {
    const entries = [];
    const swatch = (name, text, extra = "") => entries.push(
      h("span", { class: "legend-entry" }, h("span", { class: `swatch ${extra}`, style: name ? { background: `var(--${name})` } : {} }), text),
    );
    const reading = READINGS[this._mode];
    if (reading) {
      entries.push(h("span", { class: "legend-entry", text: reading.write(reading.low) }));
      entries.push(h("span", { class: "legend-scale" }, ...SCALE_COLOURS.map((name) => h("span", { style: { background: `var(--${name})` } }))));
      entries.push(h("span", { class: "legend-entry", text: reading.write(reading.high) }));
    } else {
      let others = 0;
      for (const [owner, name] of this._owners) {
        if (name === OTHERS_COLOUR) others += this._counts.get(owner);
        else swatch(name, `${owner} ${formatWhole(this._counts.get(owner))}`);
      }
      if (others) swatch(OTHERS_COLOUR, `${labels.others} ${formatWhole(others)}`);
    }
    const gpus = this._layout.cells.map((cell) => cell.gpu);
    const free = gpus.filter((gpu) => !gpu.jobs.length && !gpu.drain_reason).length;
    if (free && !reading) swatch(null, `${labels.free} ${formatWhole(free)}`, "swatch-free");
    const drained = gpus.filter((gpu) => gpu.drain_reason).length;
    if (drained) swatch(null, `${labels.drained} ${formatWhole(drained)}`, "swatch-down");
    fill(this._legend, ...entries);
  }

  // Pointer and keyboard.

  _listen() {
    const canvas = this._canvas;
    canvas.addEventListener("pointermove", (event) => this._point(event));
    canvas.addEventListener("pointerleave", () => this._leave());
    canvas.addEventListener("click", () => this._open());
    canvas.addEventListener("keydown", (event) => this._press(event));
    canvas.addEventListener("focus", () => this._select(Math.max(0, this._current), true));
    canvas.addEventListener("blur", () => this._leave());
  }

  _point(event) {
    const { left, top } = this._canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    const found = this._layout.cells.findIndex((cell) => x >= cell.x - 1 && x <= cell.x + cell.width + 1 && y >= cell.y - 1 && y <= cell.y + cell.height + 1);
    this._select(found, false);
  }

  _leave() {
    this._current = -1;
    this._tip.hidden = true;
    this._draw();
  }

  _press(event) {
    const { cells } = this._layout;
    const at = cells[this._current];
    const moves = { ArrowRight: () => this._current + 1, ArrowLeft: () => this._current - 1, Home: () => 0, End: () => cells.length - 1,
      ArrowDown: () => nearest(cells, at, 1), ArrowUp: () => nearest(cells, at, -1) };
    if (event.key === "Enter") this._open();
    else if (event.key === "Escape") this._leave();
    else if (moves[event.key] && at) this._select(Math.max(0, Math.min(cells.length - 1, moves[event.key]())), true);
    else return;
    event.preventDefault();
  }

  _select(index, speak) {
    if (index === this._current && !speak) return;
    this._current = index;
    this._draw();
    const cell = this._layout.cells[index];
    this._canvas.classList.toggle("pointing", Boolean(cell?.gpu.jobs.length));
    this._tip.hidden = !cell;
    if (!cell) return;
    const lines = this._describe(cell.gpu);
    fill(this._tip, h("strong", { text: lines[0] }), ...lines.slice(1).map((text) => h("span", { text })));
    const right = cell.x > this.element.clientWidth / 2;
    this._tip.style.left = right ? "auto" : `${cell.x + cell.width + 10}px`;
    this._tip.style.right = right ? `${this.element.clientWidth - cell.x + 10}px` : "auto";
    this._tip.style.top = `${cell.y}px`;
    if (speak) this._spoken.textContent = lines.join(", ");
  }

  _describe(gpu) {
    const lines = [labels.gpu(gpu.node, gpu.index)];
    const domains = Object.entries(this._nodes.find((node) => node.name === gpu.node)?.domains ?? {});
    if (domains.length) lines.push(domains.map(([level, name]) => labels.domain(level, name)).join(" · "));
    gpu.jobs.forEach((id, index) => lines.push([id, ...(index ? [] : [gpu.user, gpu.tenant])].filter(Boolean).join(" · ")));
    if (!gpu.jobs.length) lines.push(labels.free);
    if (gpu.drain_reason) lines.push(`${labels.drained}: ${gpu.drain_reason}`);
    if (gpu.used_by) lines.push(labels.usedBy(gpu.used_by));
    const readings = [gpu.name, gpu.utilisation !== null && `${formatPercent(gpu.utilisation / 100)}`,
      gpu.memory_mib && `${formatGib(gpu.memory_used_mib)} of ${formatGib(gpu.memory_mib)}`,
      gpu.celsius !== null && `${formatWhole(gpu.celsius)} °C`, gpu.watts !== null && `${formatWhole(gpu.watts)} W`];
    lines.push(readings.filter(Boolean).join(" · "));
    return lines;
  }

  _open() {
    const gpu = this._layout.cells[this._current]?.gpu;
    if (gpu?.jobs.length) location.hash = `#/jobs/${encodeURIComponent(gpu.jobs[0])}`;
    else if (gpu) location.hash = `#/nodes/${encodeURIComponent(gpu.node)}`;
  }
}

/** Whether two neighbours are the same job on the same line of a node, and are drawn as one. */
function joins(cell, next) {
  if (!next || cell.y !== next.y || cell.gpu.node !== next.gpu.node) return false;
  const [one, other] = [cell.gpu, next.gpu];
  return one.jobs.length === 1 && other.jobs.length === 1 && one.jobs[0] === other.jobs[0] && !one.free && !other.free
    && one.drain_reason === other.drain_reason;
}

/** The GPU below or above, in the line that is closest. */
function nearest(cells, at, direction) {
  let [best, distance] = [cells.indexOf(at), Infinity];
  cells.forEach((cell, index) => {
    const down = (cell.y - at.y) * direction;
    const far = down * 4 + Math.abs(cell.x - at.x);
    if (down > 0 && far < distance) [best, distance] = [index, far];
  });
  return best;
}

function shorten(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > width) end -= 1;
  return `${text.slice(0, end)}…`;
}
