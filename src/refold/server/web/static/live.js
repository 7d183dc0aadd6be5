/** The event stream, and what a page does with it: load again what may have changed, not too often. */

import { eventTexts } from "./texts.js";

const RETRY_MILLISECONDS = 3000;
const CHECK_MILLISECONDS = 5000;
const SLEEP_MILLISECONDS = 20000;
/** Events that are kept for the list of activity. */
const KEPT_EVENTS = 60;

/** Follows the event stream of the daemon; continues where it was after a lost connection or a sleep of the machine. */
export class LiveEvents {
  /** @param {import("./api.js").DaemonSource} source */
  constructor(source) {
    this._source = source;
    this._listeners = new Set();
    this._stream = null;
    this._last = null;
    this._retry = 0;
    this._checked = 0;
    this._timer = 0;
    this.state = "connecting";
    /** The longest pause after which pages load again what has changed. */
    this.maxPause = Infinity;
    /** @type {any[]} The latest events, newest first. */
    this.latest = [];
    this._onVisible = () => {
      if (!document.hidden) this._wake();
    };
  }

  /** @param {number|null} since number of the last event before those to show */
  start(since = null) {
    this._last = since;
    this._checked = Date.now();
    this._timer = window.setInterval(() => this._check(), CHECK_MILLISECONDS);
    document.addEventListener("visibilitychange", this._onVisible);
    this._connect();
  }

  stop() {
    window.clearInterval(this._timer);
    window.clearTimeout(this._retry);
    document.removeEventListener("visibilitychange", this._onVisible);
    this._stream?.close();
    this._stream = null;
  }

  /**
   * Call a function at each event, and with null when everything may have changed.
   * @param {(event: any) => void} listener
   * @returns {() => void} a function that ends it
   */
  listen(listener) {
    this._listeners.add(listener);
    return () => this._listeners.delete(listener);
  }

  _connect() {
    window.clearTimeout(this._retry);
    this._stream?.close();
    const stream = new EventSource(this._source.eventsUrl(this._last));
    this._stream = stream;
    stream.onopen = () => {
      this._setState("live");
      this._tell(null);
    };
    stream.onerror = () => {
      if (stream !== this._stream) return;
      this._setState("offline");
      if (stream.readyState === EventSource.CLOSED) {
        this._retry = window.setTimeout(() => this._connect(), RETRY_MILLISECONDS);
      }
    };
    for (const kind of Object.keys(eventTexts)) stream.addEventListener(kind, (message) => this._receive(message));
  }

  _receive(message) {
    if (!message.data) return; // an error of the connection has the name of an event
    const event = JSON.parse(message.data);
    this._last = Math.max(this._last ?? 0, event.number);
    if (event.kind === "lost") {
      this._tell(null);
      return;
    }
    this.latest = [event, ...this.latest].slice(0, KEPT_EVENTS);
    this._tell(event);
  }

  /** A timer that is late by much: the machine has slept, and the connection may be dead without knowing it. */
  _check() {
    const late = Date.now() - this._checked - CHECK_MILLISECONDS;
    this._checked = Date.now();
    if (late > SLEEP_MILLISECONDS) this._connect();
  }

  _wake() {
    this._check();
    this._tell(null);
  }

  _setState(state) {
    this.state = state;
    this._tell(undefined);
  }

  _tell(event) {
    for (const listener of [...this._listeners]) listener(event);
  }
}

/** What a page loads again: at events (not too often), from time to time, and never while it is hidden. */
export class Refresher {
  /**
   * @param {LiveEvents} live
   * @param {(signal: AbortSignal) => Promise<void>} load
   * @param {{every?: number, pause?: number, matches?: (event: any) => boolean}} options `every`: milliseconds after which
   *   to load again in any case; `pause`: at least this long between two loads; `matches`: which events matter
   */
  constructor(live, load, { every = 10000, pause = 1000, matches = () => true } = {}) {
    this._live = live;
    this._load = load;
    this._every = every;
    this._pause = Math.min(pause, live.maxPause);
    this._matches = matches;
    this._abort = new AbortController();
    this._timer = 0;
    this._due = 0;
    this._loading = false;
    this._again = false;
    this._unlisten = live.listen((event) => {
      if (event === null || (event !== undefined && this._matches(event))) this.soon();
    });
    this.now();
  }

  /** Load now. */
  async now() {
    window.clearTimeout(this._timer);
    this._due = 0;
    if (this._loading) {
      this._again = true;
      return;
    }
    this._loading = true;
    try {
      await this._load(this._abort.signal);
    } finally {
      this._loading = false;
      if (!this._abort.signal.aborted) {
        this._plan(this._again ? this._pause : this._every);
        this._again = false;
      }
    }
  }

  /** Load after the pause. */
  soon() {
    if (this._loading) this._again = true;
    else this._plan(this._pause);
  }

  _plan(delay) {
    const due = Date.now() + delay;
    if (this._due && this._due <= due) return;
    window.clearTimeout(this._timer);
    this._due = due;
    this._timer = window.setTimeout(() => {
      this._due = 0;
      if (!document.hidden) this.now();
      else this._plan(this._every);
    }, delay);
  }

  stop() {
    window.clearTimeout(this._timer);
    this._unlisten();
    this._abort.abort();
  }
}
