/** Elements without markup strings: text is always text, so that nothing a job is named or prints becomes markup. */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Create an element.
 * @param {string} tag
 * @param {Record<string, any>} [props] `class`, `text`, `style` (an object), `on…` (listeners); all others are attributes.
 *   An attribute that is null, undefined or false is left out.
 * @param {...(Node|string|null|undefined|false)} children
 * @returns {HTMLElement}
 */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") element.textContent = String(value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, ...children);
  return element;
}

/** Append children, leaving out those that are null, undefined or false. @param {Element} element */
export function append(element, ...children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child);
  }
  return element;
}

/** Replace all children. @param {Element} element */
export function fill(element, ...children) {
  element.replaceChildren();
  return append(element, ...children);
}

/** Set the text of an element if it has changed: screen readers announce nothing anew. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Set or remove an attribute if it has changed. */
export function setAttribute(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
}

/** Create an SVG element. @param {Record<string, string|number>} attributes */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children.filter(Boolean));
  return element;
}

const ICONS = {
  overview: "M3 3h8v8H3zM13 3h8v5h-8zM13 10h8v11h-8zM3 13h8v8H3z",
  jobs: "M4 6h16M4 12h16M4 18h10",
  timeline: "M3 5h9M7 12h11M12 19h9",
  nodes: "M4 4h16v6H4zM4 14h16v6H4zM8 7h.01M8 17h.01",
  tenants: "M9 11a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM2 21a7 7 0 0 1 14 0M17 11a3.5 3.5 0 0 0 0-7M18 14a6 6 0 0 1 4 6",
  whatif: "M12 21a9 9 0 1 0-9-9M12 7v5l3 2M3 17v4h4",
  plan: "M4 20V10M10 20V4M16 20v-7M22 20H2",
  sun: "M12 17a5 5 0 1 0 0-10 5 5 0 0 0 0 10zM12 1v2M12 21v2M4.2 4.2l1.4 1.4M18.4 18.4l1.4 1.4M1 12h2M21 12h2M4.2 19.8l1.4-1.4M18.4 5.6l1.4-1.4",
  moon: "M21 12.8A9 9 0 1 1 11.2 3a7 7 0 0 0 9.8 9.8z",
  auto: "M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18",
  out: "M9 21H5a2 2 0 0 1-2-2V5a2 2 0 0 1 2-2h4M16 17l5-5-5-5M21 12H9",
  alert: "M12 9v4M12 17h.01M10.3 3.9 1.8 18a2 2 0 0 0 1.7 3h17a2 2 0 0 0 1.7-3L13.7 3.9a2 2 0 0 0-3.4 0z",
  search: "M11 19a8 8 0 1 0 0-16 8 8 0 0 0 0 16zM21 21l-4.3-4.3",
  close: "M6 6l12 12M18 6 6 18",
  play: "M7 4v16l13-8z",
  pause: "M7 4v16M17 4v16",
  back: "M15 18l-6-6 6-6",
  forward: "M9 6l6 6-6 6",
};

/** An icon of 24 × 24 units, hidden from screen readers: a text is beside it. @param {keyof ICONS} name */
export function icon(name, size = 18) {
  const path = svg("path", { d: ICONS[name] });
  return svg("svg", { class: "icon", viewBox: "0 0 24 24", width: size, height: size, "aria-hidden": "true" }, path);
}
