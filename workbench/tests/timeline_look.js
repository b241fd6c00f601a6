// Looks at pages in iframes and writes what is wrong with them into the document; test only.
"use strict";
const WIDE_FROM = 1200;

function rectsOf(element) {
  return [...element.getClientRects()].filter((r) => r.width > 0.5 && r.height > 0.5);
}

function meet(a, b, across, down) {
  return Math.min(a.right, b.right) - Math.max(a.left, b.left) > across &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > down;
}

function overlaps(elements, down) {
  const boxes = elements.flatMap((e) => rectsOf(e).map((r) => [e, r]));
  const bad = [];
  boxes.forEach(([one, a], index) => {
    for (const [other, b] of boxes.slice(index + 1)) {
      if (one !== other && meet(a, b, 1, down)) {
        bad.push(`"${one.textContent}" meets "${other.textContent}"`);
      }
    }
  });
  return bad;
}

function inside(a, b) {
  return a.left >= b.left - 1 && a.right <= b.right + 1 && a.top >= b.top - 1 && a.bottom <= b.bottom + 1;
}

function channels(colour) {
  const found = /rgba?\(([^)]+)\)/.exec(colour);
  return found ? found[1].split(/[ ,/]+/).map(Number) : null;
}

function luminance(rgb) {
  const [r, g, b] = rgb.map((c) => c / 255).map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

// The colours that a text at this place lies on: the first opaque shape under it, and its own halo.
function grounds(doc, element, box) {
  const win = doc.defaultView, found = [], style = win.getComputedStyle(element);
  const under = doc.elementsFromPoint((box.left + box.right) / 2, (box.top + box.bottom) / 2);
  for (const other of under) {
    if (other === element || element.contains(other) || other.contains(element) && other instanceof win.SVGElement) continue;
    if (other instanceof win.SVGTextContentElement || other instanceof win.SVGLineElement) continue;
    const look = win.getComputedStyle(other);
    const svg = other instanceof win.SVGGeometryElement;
    const colour = svg ? look.fill : look.backgroundImage !== "none" ? look.backgroundImage : look.backgroundColor;
    const rgb = channels(colour);
    if (rgb && (rgb.length < 4 || rgb[3] === 1)) { found.push(rgb.slice(0, 3)); break; }
  }
  if (element instanceof win.SVGElement && style.stroke !== "none") found.push(channels(style.stroke).slice(0, 3));
  return found;
}

function faint(doc, elements) {
  const bad = [];
  for (const theme of ["light", "dark"]) {
    doc.documentElement.dataset.theme = theme;
    for (const element of elements) {
      const box = rectsOf(element)[0];
      if (!box) continue;
      const style = doc.defaultView.getComputedStyle(element);
      const ink = channels(element.closest("svg") ? style.fill : style.color).slice(0, 3);
      const under = grounds(doc, element, box);
      if (!under.length) bad.push(`no ground found under "${element.textContent}"`);
      for (const ground of under) {
        const ratio = contrast(ink, ground);
        if (ratio < 4.5) bad.push(`${theme}: "${element.textContent}" has contrast ${ratio.toFixed(2)}`);
      }
    }
  }
  return bad;
}

function lookWide(doc) {
  const svg = doc.querySelector(".wide svg"), whole = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll("text")];
  const bad = overlaps(texts, 3);
  for (const text of texts) {
    if (!inside(text.getBoundingClientRect(), whole)) bad.push(`"${text.textContent}" leaves the picture`);
  }
  const axis = svg.querySelector(".axis").getBoundingClientRect();
  const lanes = [...svg.querySelectorAll(".rule, .wall")].map((l) => l.getBoundingClientRect().top).sort((a, b) => a - b);
  const bars = [...svg.querySelectorAll(".lease, .dead, .runs, .apw, .apk")].map((b) => b.getBoundingClientRect());
  for (const bar of bars) {
    if (bar.left < axis.left - 1 || bar.right > axis.right + 15) bad.push("a bar leaves the axis");
    if (lanes.some((y) => y > bar.top - 2 && y < bar.bottom + 2)) bad.push("a bar leaves its lane");
  }
  return [bad, texts];
}

function lookNarrow(doc, width) {
  const texts = [...doc.querySelectorAll(".rail .t, .rail .g, .rail strong, .rail small, .rail .chip, .rail .edge")];
  const bad = overlaps(texts, 4);
  for (const item of doc.querySelectorAll(".rail li")) {
    const whole = item.getBoundingClientRect();
    for (const rail of item.querySelectorAll("i, .sign")) {
      const box = rail.getBoundingClientRect();
      if (box.left < whole.left + 80 || box.right > whole.left + 172) bad.push("a rail leaves its column");
    }
    for (const word of item.querySelectorAll("strong, small, .chip, .edge")) {
      for (const box of rectsOf(word)) {
        if (box.left < whole.left + 170 || box.right > width - 10) bad.push(`"${word.textContent}" leaves its column`);
      }
    }
  }
  return [bad, texts];
}

function look(frame) {
  const doc = frame.contentDocument, width = Number(frame.dataset.width);
  const shown = doc.defaultView.getComputedStyle(doc.querySelector(".wide")).display !== "none";
  const bad = [];
  if (doc.documentElement.scrollWidth > width) bad.push(`the page is ${doc.documentElement.scrollWidth} wide`);
  if (shown !== (width >= WIDE_FROM)) bad.push("the wrong one of the two pictures is shown");
  const [found, texts] = shown ? lookWide(doc) : lookNarrow(doc, width);
  const words = [...doc.querySelectorAll("h1, h2, p, dt, dd, figcaption span, figcaption b, td, th, time, td code, li")];
  const plain = words.filter((e) => e.childNodes.length && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()));
  return [...bad, ...found, ...(width === 1200 ? [] : faint(doc, [...texts, ...plain]))];
}

addEventListener("load", () => {
  const result = {};
  for (const frame of document.querySelectorAll("iframe")) {
    try {
      result[`${frame.dataset.name} at ${frame.dataset.width}`] = look(frame);
    } catch (error) {
      result[`${frame.dataset.name} at ${frame.dataset.width}`] = [String(error.stack)];
    }
  }
  document.body.innerHTML = '<pre id="result"></pre>';
  document.getElementById("result").textContent = "BEGIN" + JSON.stringify(result) + "END";
});
