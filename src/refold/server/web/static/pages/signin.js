/** The sign-in page: a one-time link for users of the machine, a token for others. */

import { field } from "../controls.js";
import { h } from "../dom.js";
import { brandMark } from "../shell.js";
import { texts } from "../texts.js";

const labels = texts.signIn;

/**
 * @param {import("../api.js").DaemonSource} source
 * @param {string} message why one has to sign in
 * @param {() => void} onSignedIn
 */
export function signInPage(source, message, onSignedIn) {
  const token = h("input", { type: "password", name: "token", autocomplete: "current-password", required: true, spellcheck: "false" });
  const button = h("button", { type: "submit", class: "button primary", text: labels.submit });
  const problem = h("p", { class: "field-problem", role: "alert", text: message });
  const form = h("form", {}, field(labels.token, token, labels.tokenHelp), button);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    button.textContent = labels.checking;
    try {
      await source.signIn({ token: token.value });
      onSignedIn();
    } catch (error) {
      problem.textContent = error.status === 0 ? texts.error.offline : error.message;
      button.disabled = false;
      button.textContent = labels.submit;
      token.focus();
    }
  });
  return h(
    "main", { class: "centre" },
    h(
      "div", { class: "card signin" },
      h("div", { class: "brand" }, brandMark(), h("span", { text: texts.product })),
      h("h1", { text: labels.title }), problem,
      h("p", { text: labels.local }), h("pre", { class: "command" }, h("code", { text: labels.command })),
      h("p", { class: "muted", text: labels.localHelp }),
      h("hr", {}), h("p", { text: labels.or }), form,
    ),
  );
}
