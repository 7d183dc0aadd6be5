/** Where the GPUs of a map are: node after node in lines that fill the width, as large as the height allows. Each
 * domain, such as a rack, begins a line, unless it would be much shorter than the others.
 */

const SIZES = [52, 44, 36, 30, 26, 22, 18, 15, 13, 11, 9];
const TINY_SIZES = [9, 7, 6, 5];
const PER_LINE = 8;
const LABEL_HEIGHT = 15;

/** @typedef {{x: number, y: number, width: number, height: number, gpu: any}} Cell */
/** @typedef {{x: number, y: number, width: number, text: string, domain: string}} Label */
/** @typedef {{cells: Cell[], labels: Label[], height: number, size: number}} Layout */

/**
 * @param {{name: string, path: string[], gpus: any[]}[]} nodes in the order of their domains
 * @param {number} width
 * @param {number} wanted height that should not be exceeded; without names of nodes if there is no other way
 * @returns {Layout}
 */
export function layOut(nodes, width, wanted) {
  for (const size of SIZES) {
    const layout = tryOut(nodes, width, size, LABEL_HEIGHT);
    if (layout.height <= wanted) return layout;
  }
  const named = tryOut(nodes, width, SIZES[SIZES.length - 1], LABEL_HEIGHT);
  if (named.height <= 1.5 * wanted) return named;
  let tiny = named;
  for (const size of TINY_SIZES) {
    tiny = tryOut(nodes, width, size, 0);
    if (tiny.height <= wanted) break;
  }
  return tiny;
}

/** The innermost level whose domains fill at least half of a line, and the number of nodes of the largest; -1: none. */
function lineLevel(nodes, perLine) {
  for (let level = Math.max(0, ...nodes.map((node) => node.path.length)) - 1; level >= 0; level -= 1) {
    const counts = new Map();
    for (const name of nodes.map(({ path }) => path.slice(0, level + 1).join("/"))) counts.set(name, (counts.get(name) ?? 0) + 1);
    const largest = Math.max(...counts.values());
    if (2 * largest >= perLine || !level) return [level, largest];
  }
  return [-1, nodes.length];
}

/** Lay out with cells of a size. Lines have the same number of nodes, whose cells are stretched to fill the width. */
function tryOut(nodes, width, size, labelHeight) {
  const gap = size > 12 ? 3 : size > 7 ? 2 : 1;
  const between = size > 20 ? 20 : labelHeight ? 14 : 7;
  const lineGap = size > 20 ? 14 : labelHeight ? 9 : 6;
  const most = Math.max(1, ...nodes.map((node) => Math.min(PER_LINE, node.gpus.length)));
  const natural = Math.max(most * (size + gap) - gap, labelHeight ? 48 : 0);
  const fitting = Math.max(1, Math.min(nodes.length, Math.floor((width + between) / (natural + between))));
  const [level, largest] = lineLevel(nodes, fitting);
  const perLine = level < 0 ? fitting : Math.ceil(largest / Math.ceil(largest / fitting)); // lines of a domain are equally long
  const available = (width + between) / perLine - between;
  const block = Math.min(available, natural * (perLine < nodes.length ? 2 : 1.6));
  const cellWidth = Math.min((block + gap) / most - gap, Math.max(2.4 * size, 0));
  const cells = [];
  const labels = [];
  let [y, lineHeight, column, path] = [0, 0, -1, []];
  for (const node of nodes) {
    column += 1;
    const changed = node.path.findIndex((name, at) => name !== path[at]);
    if (column === perLine || (column && changed >= 0 && changed <= level)) [y, lineHeight, column] = [y + lineHeight + lineGap, 0, 0];
    const x = column * (block + between);
    if (labelHeight) labels.push({ x, y, width: block, text: node.name, domain: changed < 0 ? "" : node.path.slice(changed).join(" · ") });
    path = node.path;
    node.gpus.forEach((gpu, index) => {
      const left = x + (index % PER_LINE) * (cellWidth + gap);
      const top = y + labelHeight + Math.floor(index / PER_LINE) * (size + gap);
      cells.push({ x: left, y: top, width: cellWidth, height: size, gpu });
    });
    const lines = Math.max(1, Math.ceil(node.gpus.length / PER_LINE));
    lineHeight = Math.max(lineHeight, labelHeight + lines * (size + gap) - gap);
  }
  return { cells, labels, height: y + lineHeight + 2, size };
}
