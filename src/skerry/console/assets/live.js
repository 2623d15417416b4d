// The stream of changes: one connection for each visible page. A hidden page has none, because a browser opens at most
// six connections to a server without HTTP/2; it catches up when it is shown again.
const TICK_MS = 10000;
let source = null;
let wasLost = false;

function topics() {
  return document.body.dataset.topics.split(",").filter(Boolean);
}

function announce(topic) {
  document.body.dispatchEvent(new CustomEvent(`live:${topic}`));
}

export function announceAll() {
  // One request for an element is enough, whatever it listens to: htmx drops those that come while one is under way.
  topics().forEach(announce);
}

function open() {
  if (source || document.hidden || !topics().length) return;
  source = new EventSource(`/console/stream?topics=${topics().join(",")}`);
  source.onopen = () => {
    document.getElementById("stale").hidden = true;
    document.body.dataset.live = "yes";
    if (wasLost) announceAll();
    wasLost = false;
  };
  source.onerror = () => {
    wasLost = true;
    document.body.dataset.live = "no";
    document.getElementById("stale").hidden = false;
    if (source.readyState === EventSource.CLOSED) {
      close();
      setTimeout(open, 3000);
    }
  };
  for (const topic of topics()) source.addEventListener(topic, () => announce(topic));
}

function close() {
  source?.close();
  source = null;
}

export function startLive() {
  open();
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      close();
      wasLost = true;
    } else {
      open();
    }
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  setInterval(() => document.hidden || announce("tick"), TICK_MS);
}
