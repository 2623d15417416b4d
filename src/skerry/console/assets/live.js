// The stream of changes: one connection for each visible page. A hidden page has none, because a browser opens at most
// six connections to a server without HTTP/2; it catches up when it is shown again.
//
// A page asks for the changes since the position at which it was read. Changes that come while parts of it are loaded
// are announced when they are: htmx would drop them, because the part that would load them is replaced.
const TICK_MS = 10000;
let source = null;
let position = null;
let loading = 0;
const missed = new Set();

function topics() {
  return document.body.dataset.topics.split(",").filter(Boolean);
}

function announce(...changed) {
  changed.forEach((topic) => missed.add(topic));
  if (loading) return;
  const now = [...missed];
  missed.clear();
  // One request for an element is enough, whatever it listens to: htmx drops those that come while one is under way.
  now.forEach((topic) => document.body.dispatchEvent(new CustomEvent(`live:${topic}`)));
}

export function announceAll() {
  announce(...topics());
}

function open() {
  if (source || document.hidden || !topics().length) return;
  const query = new URLSearchParams({ topics: topics().join(","), since: position });
  source = new EventSource(`/console/stream?${query}`);
  source.onopen = () => {
    document.getElementById("stale").hidden = true;
    document.body.dataset.live = "yes";
  };
  source.onerror = () => {
    document.body.dataset.live = "no";
    document.getElementById("stale").hidden = false;
    if (source.readyState === EventSource.CLOSED) {
      close();
      setTimeout(open, 3000);
    }
  };
  for (const topic of topics()) {
    source.addEventListener(topic, (event) => {
      position = event.lastEventId;
      announce(topic);
    });
  }
}

function close() {
  source?.close();
  source = null;
}

export function startLive() {
  position = document.body.dataset.position;
  open();
  document.addEventListener("htmx:beforeSend", ({ detail: { xhr } }) => {
    loading += 1;
    // Not an event of htmx: those of a part that was replaced meanwhile do not get here.
    xhr.addEventListener("loadend", () => {
      loading -= 1;
      announce();
    });
  });
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  setInterval(() => document.hidden || announce("tick"), TICK_MS);
}
