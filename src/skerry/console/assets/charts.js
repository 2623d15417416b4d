// Charts of the last hour, by uPlot. Their data is in the page, and comes again with each part that is replaced.
import { loadStyles } from "./style_sheets.js";

const drawn = new Map();

function load(name) {
  const script = document.createElement("script");
  script.src = new URL(name, import.meta.url);
  return new Promise((resolve, reject) => {
    script.onload = resolve;
    script.onerror = reject;
    document.head.append(script);
  });
}

// A colour of the theme as a canvas takes it: neither variables nor light-dark().
function color(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const resolved = getComputedStyle(probe).color;
  probe.remove();
  return resolved;
}

function draw(figure) {
  const box = figure.querySelector(".plot");
  const { times, series } = JSON.parse(figure.dataset.chart);
  const axis = {
    stroke: color("--soft"),
    grid: { stroke: color("--line"), width: 1 },
    ticks: { show: false },
    font: `12px ${getComputedStyle(figure).fontFamily}`,
  };
  const line = { stroke: color("--accent"), width: 1.5, points: { show: false } };
  const options = {
    width: box.clientWidth,
    height: box.clientHeight,
    legend: { show: false },
    cursor: { show: false },
    scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    axes: [{ ...axis, space: 60, size: 22, values: hours }, { ...axis, space: 30, size: 46 }],
    series: [{}, ...series.map(([label]) => ({ ...line, label, fill: color("--accent-ground") }))],
  };
  box.replaceChildren();
  drawn.set(figure, new uPlot(options, [times, ...series.map(([, values]) => values)], box));
}

function hours(_, splits) {
  return splits.map((at) => new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false }));
}

function drawAll(all = false) {
  for (const [figure, plot] of drawn) {
    if (!figure.isConnected || all) {
      plot.destroy();
      drawn.delete(figure);
    }
  }
  for (const figure of document.querySelectorAll("[data-chart]")) if (!drawn.has(figure)) draw(figure);
}

export async function startCharts() {
  await Promise.all([load("./uplot.js"), loadStyles("./uplot.css")]);
  drawAll();
  document.addEventListener("htmx:afterSettle", () => drawAll());
  // Canvases know neither themes nor widths.
  new MutationObserver(() => drawAll(true)).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(true));
  addEventListener("resize", () => drawAll(true));
}
