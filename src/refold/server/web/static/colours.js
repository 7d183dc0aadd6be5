/** Colours for canvases: those of the style sheet, scales for readings, and one colour per owner. */

/** The colours of a theme, resolved by the browser from custom properties. */
export class Palette {
  constructor(names) {
    const probe = document.createElement("span");
    probe.hidden = true;
    document.body.append(probe);
    this._colours = {};
    for (const name of names) {
      probe.style.color = `var(--${name})`;
      this._colours[name] = getComputedStyle(probe).color;
    }
    probe.remove();
  }

  get(name) {
    return this._colours[name];
  }
}

export const OWNER_COLOURS = Array.from({ length: 9 }, (_, index) => `owner-${index}`);
export const SCALE_COLOURS = Array.from({ length: 6 }, (_, index) => `scale-${index}`);

/** The colour of owners that have none of their own. */
export const OTHERS_COLOUR = OWNER_COLOURS[OWNER_COLOURS.length - 1];

const KEY = "refold-owners";
/** The colours that owners have been given in this browser: the same on all pages, and after a reload. @type {Map<string, string>} */
const given = new Map();
try {
  for (const [owner, colour] of JSON.parse(localStorage.getItem(KEY) ?? "[]")) given.set(owner, colour);
} catch {
  // a browser that stores nothing, or something else
}

/**
 * Which colour each owner has. Owners keep theirs; of new ones, those with most GPUs get one that no other owner here
 * has, and the rest share the last.
 */
export function assignOwners(counts) {
  const ranked = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([owner]) => owner);
  const used = new Set(ranked.map((owner) => given.get(owner)));
  const newer = ranked.filter((owner) => !given.has(owner));
  const taken = new Set(given.values());
  const own = OWNER_COLOURS.filter((colour) => colour !== OTHERS_COLOUR && !used.has(colour)).sort((a, b) => taken.has(a) - taken.has(b));
  newer.slice(0, own.length).forEach((owner, index) => {
    for (const [other, colour] of given) if (colour === own[index]) given.delete(other); // it has gone, or is on another page
    given.set(owner, own[index]);
  });
  try {
    if (newer.length) localStorage.setItem(KEY, JSON.stringify([...given]));
  } catch {
    // colours last until the page is left
  }
  return new Map(ranked.map((owner) => [owner, given.get(owner) ?? OTHERS_COLOUR]));
}

/** The step of a scale for a value between two bounds. */
export function scaleColour(value, low, high) {
  const share = Math.max(0, Math.min(0.999, (value - low) / (high - low)));
  return SCALE_COLOURS[Math.floor(share * SCALE_COLOURS.length)];
}
