// What pages do in the browser beyond htmx: the stream of changes, ages, dialogs, notices, keys, copying.
import { announceAll, startLive } from "./live.js";
import { startKeys } from "./keys.js";
import { startLogs } from "./logs.js";
import { startCommands } from "./commands.js";
import { isSelecting, startSwaps } from "./swaps.js";

function notice(text, isProblem = false) {
  const line = document.createElement("p");
  line.textContent = text;
  line.className = isProblem ? "notice bad" : "notice";
  document.getElementById("notices").append(line);
  setTimeout(() => line.remove(), isProblem ? 12000 : 6000);
}

// The sentence of an error page.
function problemOf(xhr) {
  if (!xhr.status) return "The server did not answer. Try again when the connection is back.";
  const page = new DOMParser().parseFromString(xhr.responseText || "", "text/html");
  return page.getElementById("error-message")?.textContent || `The server answered ${xhr.status}.`;
}

const UNITS = [["d", 86400], ["h", 3600], ["m", 60]];

function age(seconds) {
  for (const [unit, size] of UNITS) if (seconds >= size) return `${Math.floor(seconds / size)}${unit}`;
  return `${Math.max(0, Math.floor(seconds))}s`;
}

function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function updateAges() {
  const now = Date.now() / 1000;
  for (const element of document.querySelectorAll("time[data-age]")) {
    const at = Number(element.dataset.age);
    write(element, age(now - at));
    if (!element.title) element.title = new Date(at * 1000).toLocaleString();
  }
}

function updateCountdowns() {
  const now = Date.now() / 1000;
  for (const element of document.querySelectorAll("time[data-until]")) {
    const at = Number(element.dataset.until);
    write(element, at > now ? age(at - now) : "over");
    if (!element.title) element.title = new Date(at * 1000).toLocaleString();
  }
}

const THEMES = ["system", "light", "dark"];

function showTheme() {
  const theme = document.documentElement.dataset.theme || "system";
  for (const element of document.querySelectorAll("[data-theme-name]")) element.textContent = theme;
}

export function nextTheme() {
  const theme = document.documentElement.dataset.theme || "system";
  const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  if (next === "system") {
    delete document.documentElement.dataset.theme;
    localStorage.removeItem("skerry-theme");
  } else {
    document.documentElement.dataset.theme = next;
    localStorage.setItem("skerry-theme", next);
  }
  showTheme();
}

async function copy(button) {
  const text = button.dataset.copy;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    // Without TLS a browser may refuse: the line is selected, to be copied by hand.
    getSelection().selectAllChildren(button.previousElementSibling);
    button.textContent = "Selected";
  }
  setTimeout(() => (button.textContent = "Copy"), 2000);
}

document.addEventListener("click", (event) => {
  const target = event.target.closest("button");
  if (!target) return;
  if (target.dataset.copy !== undefined) copy(target);
  else if (target.dataset.dialog) document.getElementById(target.dataset.dialog).showModal();
  else if (target.dataset.close !== undefined) target.closest("dialog").close();
  else if (target.dataset.themeSwitch !== undefined) nextTheme();
  else if (target.dataset.help !== undefined) document.getElementById("help").showModal();
  else if (target.classList.contains("menu")) {
    const isOpen = document.body.classList.toggle("menu-open");
    target.setAttribute("aria-expanded", String(isOpen));
  }
});

// An open dialog, and text that is being selected, are not replaced under the user's hands. While an action is under way nothing is loaded: what is being
// deleted would not be found, by a page that is left when the answer comes.
let underWay = 0;
let isLeaving = false;
let hasMissed = false;

function isUsed(part) {
  return part.querySelector("dialog[open]") !== null || isSelecting(part);
}

document.addEventListener("htmx:beforeRequest", (event) => {
  const element = event.detail.elt;
  if (element.matches("dialog [data-action]")) underWay += 1;
  else if (underWay || isLeaving || (!element.matches("[data-action]") && isUsed(element))) {
    hasMissed = true;
    event.preventDefault();
  }
});

function catchUp() {
  if (!hasMissed || underWay || isLeaving || isUsed(document.body)) return;
  hasMissed = false;
  announceAll();
}

document.addEventListener("htmx:beforeOnLoad", (event) => {
  if (event.detail.xhr.getResponseHeader("HX-Redirect")) isLeaving = true;
});

// A page that the browser kept, and shows again.
addEventListener("pageshow", () => (isLeaving = false));

document.addEventListener("htmx:afterRequest", (event) => {
  const { elt, xhr, successful } = event.detail;
  if (xhr.status === 401) {
    location.assign("/console");
    return;
  }
  const form = elt.closest("[data-action]");
  if (elt.matches("dialog [data-action]")) underWay -= 1;
  if (successful) form?.closest("dialog")?.close();
  else if (form) form.querySelector("[role=alert]").textContent = problemOf(xhr);
  else if (xhr.status) notice(problemOf(xhr), true);
  catchUp();
});

// A notice stays when its action leaves the page for another.
addEventListener("pagehide", () => {
  const shown = [...document.querySelectorAll(".notice:not(.bad)")].map((line) => line.textContent);
  sessionStorage.setItem("skerry-notices", JSON.stringify(shown));
});
for (const text of JSON.parse(sessionStorage.getItem("skerry-notices") || "[]")) notice(text);
sessionStorage.removeItem("skerry-notices");

document.addEventListener("notice", (event) => notice(event.detail.value));
document.addEventListener("htmx:afterSettle", updateAges);
setInterval(updateAges, 1000);
setInterval(catchUp, 1000);
updateAges();
document.addEventListener("htmx:afterSettle", updateCountdowns);
setInterval(updateCountdowns, 1000);
updateCountdowns();
showTheme();
startSwaps();
startLive();
startKeys(nextTheme);
startLogs();
startCommands();
// On a phone: the middle of the map, and the tab that is shown.
for (const box of document.querySelectorAll(".map")) box.scrollLeft = (box.scrollWidth - box.clientWidth) / 2;
document.querySelector(".tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
// Large ones only where they are used.
if (document.querySelector("[data-chart]")) import("./charts.js").then((module) => module.startCharts());
if (document.querySelector("[data-terminal]")) import("./terminal.js").then((module) => module.startTerminals());
