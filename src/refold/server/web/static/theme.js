/** Light or dark: as the system says, or as chosen in this browser. */

const KEY = "refold-theme";
export const THEMES = ["auto", "light", "dark"];

export function currentTheme() {
  try {
    const saved = localStorage.getItem(KEY);
    return THEMES.includes(saved) ? saved : "auto";
  } catch {
    return "auto";
  }
}

export function applyTheme(theme = currentTheme()) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  window.dispatchEvent(new Event("themechange"));
}

export function chooseTheme(theme) {
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // a browser that stores nothing forgets the choice
  }
  applyTheme(theme);
}

window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => applyTheme());
