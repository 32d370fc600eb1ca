// Elements made of values. Text goes in as text nodes only: no string from the server is ever parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

export function h(tag, properties = {}, ...children) {
  return made(document.createElement(tag), properties, children);
}

export function s(tag, properties = {}, ...children) {
  return made(document.createElementNS(SVG, tag), properties, children);
}

// `hue` and `width` go through the style object, which the page's policy allows where style attributes are not.
function made(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name === "hue") element.style.setProperty("--hue", String(value));
    else if (name === "filled") element.style.width = `${Math.round(100 * Math.min(1, Math.max(0, value)))}%`;
    else if (name === "opacity") element.style.opacity = String(value);
    else element.setAttribute(name, String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

// Rows of cells: {text, label, number, head, kind...}; on a phone every cell shows its label.
export function table(target, columns, rows) {
  const head = h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col", class: column.number ? "number" : null }, column.name))));
  const body = h("tbody", {}, rows.map((row) => h("tr", { class: row.mark ?? null }, row.cells.map((cell, at) => {
    const column = columns[at];
    if (column.head) return h("th", { scope: "row" }, cell);
    const kind = [column.number ? "number" : "", column.whole ? "whole" : ""].join(" ").trim();
    return h("td", { "data-label": column.name, class: kind || null }, h("span", {}, cell));
  }))));
  target.replaceChildren(head, body);
}

export function bar(share, kind) {
  return h("span", { class: "bar", "data-kind": kind ?? null, "aria-hidden": "true" }, h("i", { filled: share }));
}

export const swatch = (hue) => h("span", { class: "swatch", hue, "aria-hidden": "true" });

export const badge = (text, kind) => h("span", { class: "badge", "data-kind": kind ?? null }, text);
