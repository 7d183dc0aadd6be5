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

/** Which of the owner colours an owner has: the owners with most GPUs have one of their own, the rest share the last. */
export function assignOwners(counts) {
  const ranked = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  const last = OWNER_COLOURS.length - 1;
  return new Map(ranked.map(([owner], rank) => [owner, OWNER_COLOURS[ranked.length > last + 1 && rank >= last ? last : rank]]));
}

/** The step of a scale for a value between two bounds. */
export function scaleColour(value, low, high) {
  const share = Math.max(0, Math.min(0.999, (value - low) / (high - low)));
  return SCALE_COLOURS[Math.floor(share * SCALE_COLOURS.length)];
}
