/** The start of the web UI: sign in, then show the page that the address names. */

import { DaemonSource, Problem } from "./api.js";
import { errorBox } from "./controls.js";
import { fill, h } from "./dom.js";
import { LiveEvents } from "./live.js";
import { Shell } from "./shell.js";
import { applyTheme } from "./theme.js";
import { callSlots, texts } from "./texts.js";

/** Pages by name: modules are loaded when they are first shown. Each exports a class with `element`, `stop()`. */
const PAGES = {
  overview: () => import("./pages/overview.js"),
  jobs: () => import("./pages/jobs.js"),
  job: () => import("./pages/job.js"),
  timeline: () => import("./pages/timeline.js"),
  nodes: () => import("./pages/nodes.js"),
  tenants: () => import("./pages/tenants.js"),
  whatif: () => import("./pages/whatif.js"),
  plan: () => import("./pages/plan.js"),
  submit: () => import("./pages/submit.js"),
};
const NAVIGATION = ["overview", "jobs", "timeline", "nodes", "tenants", "whatif", "plan"];

/** Events before the page was opened that the list of activity shows. */
const EARLIER_EVENTS = 12;

/** A page that shows a recording names its address, or contains it. */
const RECORDING = document.querySelector("meta[name=refold-recording]")?.content ?? "";
const CONTAINED = document.getElementById("recording")?.textContent ?? "";

const root = document.getElementById("app");
/** The daemon, or a recording. @type {any} */
let source = new DaemonSource();
/** @type {{live: any, shell: Shell, page: any}|null} */
let view = null;
let shown = 0;

/** @returns {{name: string, argument: string, query: URLSearchParams}} */
function readAddress() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name = "", argument = ""] = path.split("/");
  const page = name === "" ? "overview" : name === "jobs" && argument ? "job" : name;
  return { name: page, argument: decode(argument), query: new URLSearchParams(query) };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

async function showPage() {
  if (!view) return;
  const turn = ++shown;
  const { name, argument, query } = readAddress();
  const load = source.pages.includes(name) ? PAGES[name] : null;
  try {
    if (!load) throw new Error(texts.error.notFound);
    const { default: Page } = await load();
    if (turn !== shown || !view) return;
    view.page?.stop();
    view.page = new Page({ source, live: view.live, shell: view.shell, argument, query });
    fill(view.shell.main, view.page.element);
    view.shell.show(["job", "submit"].includes(name) ? "jobs" : name, argument && name === "job" ? argument : texts.pages[name]);
  } catch (error) {
    view.page?.stop();
    view.page = null;
    fill(view.shell.main, h("h1", { text: texts.error.title }), errorBox(error, showPage));
  }
  window.scrollTo(0, 0);
}

async function showShell() {
  const { live, timeBar } = await followSource();
  const navigation = NAVIGATION.filter((name) => source.pages.includes(name));
  const shell = new Shell(navigation, source, live, async () => {
    await source.signOut().catch(() => {});
    showSignIn();
  }, timeBar);
  view = { live, shell, page: null };
  fill(root, shell.element);
  const info = await source.info().catch(() => null);
  if (info?.slots) callSlots(); // before the first page is loaded, which takes its texts then
  showPage();
  if (info) shell.showInfo(info);
  live.start(info ? Math.max(0, info.last_event - EARLIER_EVENTS) : undefined);
}

/** What tells pages that something has changed: the events of a daemon, or the time of a recording. */
async function followSource() {
  if (!source.range) return { live: new LiveEvents(source), timeBar: null };
  const { RecordedTime, TimeBar } = await import("./recorded_time.js");
  const live = new RecordedTime(source);
  return { live, timeBar: new TimeBar(source, live).element };
}

async function openRecording() {
  if (!CONTAINED && !RECORDING) return;
  const { RecordedSource } = await import("./recorded.js");
  source = new RecordedSource(CONTAINED ? JSON.parse(CONTAINED) : await source.recording(RECORDING));
}

async function showSignIn(message = "") {
  if (RECORDING) {
    fill(root, h("div", { class: "centre" }, errorBox(new Problem(401, texts.recorded.link))));
    return;
  }
  view?.page?.stop();
  view?.live.stop();
  view?.shell.stop();
  view = null;
  const { signInPage } = await import("./pages/signin.js");
  document.title = `${texts.pages.signin} · ${texts.product}`;
  fill(root, signInPage(source, message, showShell));
}

/** The code of a one-time link is after '#', so that it is in no log; it is removed from the address at once. */
function takeLinkCode() {
  const match = location.hash.match(/^#open=([\w-]+)$/);
  if (match) history.replaceState(null, "", `${location.pathname}#/`);
  return match?.[1] ?? "";
}

async function start() {
  applyTheme();
  source.onSignedOut = () => view && showSignIn(texts.signIn.ended);
  window.addEventListener("hashchange", showPage);
  const code = takeLinkCode();
  try {
    if (CONTAINED) source.session = { signed_in: true };
    else if (code) await source.signIn({ code });
    else await source.loadSession();
    if (!source.session?.signed_in) {
      showSignIn();
      return;
    }
    await openRecording();
  } catch (error) {
    if (error.status === 0) fill(root, h("div", { class: "centre" }, errorBox(error, () => location.reload())));
    else showSignIn(error.message);
    return;
  }
  showShell();
}

start();
