/** The time of a recording: what moves it, and who is told. It stands in for the events of a daemon. */

import { h, icon, setAttribute, setText } from "./dom.js";
import { formatFull } from "./format.js";
import { texts } from "./texts.js";
import { useLine } from "./use_line.js";

const KEPT_EVENTS = 60;
/** Playing from the first entry to the last takes so long. */
const PLAY_MILLISECONDS = 60_000;
const FRAME_MILLISECONDS = 150;
/** Positions of the slider. */
const POSITIONS = 10_000;

/** The same methods as `LiveEvents`. */
export class RecordedTime {
  /** @param {import("./recorded.js").RecordedSource} source */
  constructor(source) {
    this._source = source;
    this._listeners = new Set();
    this.state = "recorded";
    this.maxPause = 0;
    this.latest = [];
  }

  start() { this.moveTo(this._source.at); }

  stop() {}

  listen(listener) {
    this._listeners.add(listener);
    return () => this._listeners.delete(listener);
  }

  moveTo(at) {
    this._source.moveTo(at);
    this.latest = this._source.latestEvents(KEPT_EVENTS);
    for (const listener of [...this._listeners]) listener(null);
  }
}

/** The bar that chooses the time: a slider over the use of the cluster, steps from change to change, and play. */
export class TimeBar {
  /** @param {import("./recorded.js").RecordedSource} source @param {RecordedTime} time */
  constructor(source, time) {
    this._source = source;
    this._time = time;
    this._playing = 0;
    const labels = texts.recorded;
    const button = (name, label, onclick) => h("button", { type: "button", class: "quiet", "aria-label": label, title: label, onclick }, icon(name));
    this._play = button("play", labels.play, () => (this._playing ? this._pause() : this._start()));
    this._slider = h("input", { type: "range", min: 0, max: POSITIONS, step: 1, "aria-label": labels.time });
    this._slider.addEventListener("input", () => { this._pause(); this._move(this._timeOf(Number(this._slider.value))); });
    this._slider.addEventListener("keydown", (event) => this._press(event));
    this._text = h("time", { class: "figure" });
    this.element = h(
      "section", { class: "time-bar", "aria-label": labels.time }, this._play, button("back", labels.previous, () => this._step("previous")),
      h("div", { class: "time-track" }, useLine(source), this._slider), button("forward", labels.next, () => this._step("next")), this._text,
    );
    this._unlisten = time.listen(() => this._show());
    this._show();
  }

  stop() {
    this._pause();
    this._unlisten();
  }

  _timeOf(position) {
    const [from, to] = this._source.range;
    return from + ((to - from) * position) / POSITIONS;
  }

  _move(at) {
    this._time.moveTo(at);
  }

  _step(direction) {
    this._pause();
    this._move(this._source.stepFrom(this._source.at, direction));
  }

  /** Arrow keys step from change to change; the other keys are those of a slider. */
  _press(event) {
    const direction = { ArrowLeft: "previous", ArrowDown: "previous", ArrowRight: "next", ArrowUp: "next" }[event.key];
    if (!direction) return;
    event.preventDefault();
    this._step(direction);
  }

  _start() {
    const [from, to] = this._source.range;
    if (this._source.at >= to) this._move(from);
    const step = ((to - from) * FRAME_MILLISECONDS) / PLAY_MILLISECONDS;
    this._playing = window.setInterval(() => {
      this._move(this._source.at + step);
      if (this._source.at >= to) this._pause();
    }, FRAME_MILLISECONDS);
    this._showPlaying();
  }

  _pause() {
    window.clearInterval(this._playing);
    this._playing = 0;
    this._showPlaying();
  }

  _showPlaying() {
    const label = this._playing ? texts.recorded.pause : texts.recorded.play;
    this._play.replaceChildren(icon(this._playing ? "pause" : "play"));
    setAttribute(this._play, "aria-label", label);
    setAttribute(this._play, "title", label);
  }

  _show() {
    const [from, to] = this._source.range;
    this._slider.value = String(to > from ? Math.round((POSITIONS * (this._source.at - from)) / (to - from)) : POSITIONS);
    const text = formatFull(this._source.at);
    setText(this._text, text);
    setAttribute(this._slider, "aria-valuetext", text);
  }
}
