// What somebody has set in a part of the page that a change replaces: the focus, how far boxes are scrolled, which
// branches of a tree are open. It is read before the part is replaced, and set again in the new one.
const BOXES = ".scroll, .map, .card, pre";
const SELECTING_MS = 20000;
const TARGETS = "a[href], button, input, select, textarea, summary, [tabindex]";
let selectedAt = 0;

function keyOf(element) {
  const { dialog, copy } = element.dataset;
  const name = element.getAttribute("href") ?? dialog ?? copy ?? element.getAttribute("aria-label") ?? element.textContent;
  return `${element.localName} ${name}`;
}

function branchOf(details) {
  const path = [];
  for (let one = details; one; one = one.parentElement.closest("details[data-key]")) path.unshift(one.dataset.key);
  return path.join("\n");
}

function read(part) {
  const focused = part.contains(document.activeElement) ? keyOf(document.activeElement) : null;
  const alike = [...part.querySelectorAll(TARGETS)].filter((one) => keyOf(one) === focused);
  return {
    focused,
    place: alike.indexOf(document.activeElement),
    boxes: [...part.querySelectorAll(BOXES)].map((one) => [one.scrollLeft, one.scrollTop]),
    branches: new Map([...part.querySelectorAll("details[data-key]")].map((one) => [branchOf(one), one.open])),
  };
}

function set(part, before) {
  for (const details of part.querySelectorAll("details[data-key]")) {
    details.open = before.branches.get(branchOf(details)) ?? details.open;
  }
  part.querySelectorAll(BOXES).forEach((box, index) => {
    if (before.boxes[index]) [box.scrollLeft, box.scrollTop] = before.boxes[index];
  });
  if (before.focused === null || part.contains(document.activeElement)) return;
  const alike = [...part.querySelectorAll(TARGETS)].filter((one) => keyOf(one) === before.focused);
  (alike[before.place] ?? alike[0])?.focus({ preventScroll: true });
}

// True if text in `part` was selected a moment ago: it is not replaced under somebody who copies it.
export function isSelecting(part) {
  const selection = getSelection();
  return !selection.isCollapsed && part.contains(selection.anchorNode) && Date.now() - selectedAt < SELECTING_MS;
}

export function startSwaps() {
  const states = new Map();
  document.addEventListener("selectionchange", () => (selectedAt = Date.now()));
  document.addEventListener("htmx:beforeSwap", ({ detail: { target } }) => {
    if (target.id) states.set(target.id, read(target));
  });
  document.addEventListener("htmx:afterSettle", () => {
    for (const [id, before] of states) {
      const part = document.getElementById(id);
      if (part) set(part, before);
    }
    states.clear();
  });
}
