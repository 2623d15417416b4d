// The live log viewer: output as text, line by line, never as markup. If the connection is lost, it begins again.
const MAX_LINES = 5000;
const RETRY_MS = 3000;

function start(box) {
  const lines = box.querySelector("[data-log-lines]");
  const state = box.querySelector("[data-log-state]");
  const search = box.querySelector("[data-log-search]");
  const follows = box.querySelector("[data-log-follow]");

  function matches(text) {
    return text.toLowerCase().includes(search.value.toLowerCase());
  }

  function add(text) {
    const line = document.createElement("span");
    line.textContent = `${text}\n`;
    line.hidden = !matches(text);
    lines.append(line);
    while (lines.childElementCount > MAX_LINES) lines.firstElementChild.remove();
  }

  async function follow() {
    const reply = await fetch(box.dataset.log);
    if (reply.status === 401) {
      location.assign("/console");
      return;
    }
    if (!reply.ok) {
      const page = new DOMParser().parseFromString(await reply.text(), "text/html");
      state.textContent = page.getElementById("error-message")?.textContent || `the server answered ${reply.status}`;
      // Not started yet, or the server or node is away for the moment.
      if (reply.status === 412 || reply.status >= 502) setTimeout(begin, RETRY_MS);
      return;
    }
    state.textContent = "following";
    lines.replaceChildren();
    let rest = "";
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      parts.forEach(add);
      if (follows.checked) lines.scrollTop = lines.scrollHeight;
    }
    if (rest) add(rest);
    state.textContent = "ended";
  }

  function begin() {
    follow().catch(() => {
      state.textContent = "connection lost; trying again…";
      setTimeout(begin, RETRY_MS);
    });
  }

  search.addEventListener("input", () => {
    for (const line of lines.children) line.hidden = !matches(line.textContent);
  });
  begin();
}

export function startLogs() {
  document.querySelectorAll("[data-log]").forEach(start);
}
