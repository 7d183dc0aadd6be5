/** The frame of all pages: navigation, who is signed in, colours, and whether the page is live. */

import { fill, h, icon, setText } from "./dom.js";
import { chooseTheme, currentTheme, THEMES } from "./theme.js";
import { texts } from "./texts.js";

const THEME_ICONS = { auto: "auto", light: "sun", dark: "moon" };

export class Shell {
  /**
   * @param {Record<string, any>} pages by name
   * @param {import("./api.js").DaemonSource} source
   * @param {import("./live.js").LiveEvents} live
   * @param {() => void} onSignOut
   * @param {Element|null} timeBar of a recording
   */
  constructor(pages, source, live, onSignOut, timeBar = null) {
    this._live = live;
    this.main = h("main", { id: "main", tabindex: -1 });
    this._cluster = h("span", { class: "cluster-name" });
    this._policy = h("span", { class: "cluster-policy" });
    this._state = h("span", { class: "live", role: "status", title: source.range ? texts.recorded.help : texts.liveHelp });
    this._links = new Map();
    const list = h("ul", {});
    for (const name of pages) {
      const link = h("a", { href: `#/${name === "overview" ? "" : name}` }, icon(name), h("span", { text: texts.pages[name] }));
      this._links.set(name, link);
      list.append(h("li", {}, link));
    }
    const account = h("div", { class: "account" }, this._themeButton());
    if (source.session) {
      const who = texts.signedInAs(source.session.user, source.session.role);
      account.append(h("button", { type: "button", class: "quiet", onclick: onSignOut, title: who, "aria-label": `${texts.signOut} (${who})` }, icon("out"), h("span", { text: texts.signOut })));
      account.prepend(h("span", { class: "who", title: who }, h("span", { text: source.session.user || "–" }), h("span", { class: "sub", text: source.session.role })));
    }
    this._nav = h("nav", { "aria-label": texts.navigation }, list);
    new ResizeObserver(() => this._reveal()).observe(this._nav);
    this.element = h(
      "div", { class: "shell" },
      h("a", { class: "skip", href: "#main", text: texts.skip, onclick: (event) => { event.preventDefault(); this.main.focus(); } }),
      h(
        "header", { class: "side" },
        h("a", { class: "brand", href: "#/" }, brandMark(), h("span", { text: texts.product })),
        h("div", { class: "cluster" }, this._cluster, this._policy, this._state),
        this._nav,
        account,
      ),
      this.main, timeBar,
    );
    this._unlisten = live.listen(() => this._showState());
    this._showState();
  }

  /** Mark the page that is shown. */
  show(name, title) {
    for (const [page, link] of this._links) {
      if (page === name) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    this._reveal();
    document.title = title === texts.pages.overview ? texts.product : `${title} · ${texts.product}`;
  }

  /** Scroll to the link of the page: on a phone, the navigation is one line. */
  _reveal() {
    const link = this._nav.querySelector("[aria-current]");
    if (link) this._nav.scrollLeft = link.offsetLeft - this._nav.offsetLeft - (this._nav.clientWidth - link.offsetWidth) / 2;
  }

  showInfo(info) {
    setText(this._cluster, info.cluster);
    setText(this._policy, info.policy);
  }

  stop() {
    this._unlisten();
  }

  _showState() {
    const state = this._live.state;
    this._state.className = `live live-${state}`;
    if (this._state.dataset.state === state) return;
    this._state.dataset.state = state;
    fill(this._state, h("span", { class: "dot", "aria-hidden": "true" }), texts.live[state]);
  }

  _themeButton() {
    const button = h("button", { type: "button", class: "quiet" });
    const show = () => {
      const theme = currentTheme();
      fill(button, icon(THEME_ICONS[theme]), h("span", { text: texts.theme[theme] }));
      button.setAttribute("aria-label", `${texts.theme.label}: ${texts.theme[theme]}`);
      button.title = `${texts.theme.label}: ${texts.theme[theme]}`;
    };
    button.addEventListener("click", () => {
      chooseTheme(THEMES[(THEMES.indexOf(currentTheme()) + 1) % THEMES.length]);
      show();
    });
    show();
    return button;
  }
}

export function brandMark() {
  return h("span", { class: "mark", "aria-hidden": "true" }, h("i"), h("i"), h("i"));
}
