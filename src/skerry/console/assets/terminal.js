// A terminal in an instance: xterm.js over the WebSocket of the API's exec. The first byte of a message is its channel.
import { FitAddon, Terminal } from "./xterm.js";
import { loadStyles, styledDocument } from "./style_sheets.js";

const OUTPUT = 1, ERRORS = 2, EXIT = 3, INPUT = 4, SIZE = 6;

function message(channel, text) {
  const data = new TextEncoder().encode(text);
  const framed = new Uint8Array(data.length + 1);
  framed[0] = channel;
  framed.set(data, 1);
  return framed;
}

function colors(box) {
  const style = getComputedStyle(box);
  return { background: style.backgroundColor, foreground: style.color, cursor: style.color, cursorAccent: style.backgroundColor };
}

function open(box) {
  const screen = box.querySelector("[data-terminal-screen]");
  const state = box.querySelector("[data-terminal-state]");
  const again = box.querySelector("[data-terminal-again]");
  screen.replaceChildren();
  again.hidden = true;
  const terminal = new Terminal({
    documentOverride: styledDocument,
    fontFamily: getComputedStyle(document.querySelector("code")).fontFamily,
    fontSize: 13,
    cursorBlink: true,
    screenReaderMode: true,
    theme: colors(screen),
  });
  const fit = new FitAddon();
  terminal.loadAddon(fit);
  terminal.open(screen);
  fit.fit();

  const address = new URL(box.dataset.terminal, location.href);
  address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  address.searchParams.set("rows", terminal.rows);
  address.searchParams.set("columns", terminal.cols);
  const socket = new WebSocket(address);
  socket.binaryType = "arraybuffer";
  let ended = "The terminal could not be opened; is there a shell in this image?";
  const resized = new ResizeObserver(() => fit.fit());

  function send(channel, text) {
    if (socket.readyState === WebSocket.OPEN) socket.send(message(channel, text));
  }

  socket.onopen = () => {
    state.textContent = "connected";
    ended = "The connection is lost.";
    resized.observe(screen);
    terminal.focus();
  };
  socket.onmessage = (event) => {
    const data = new Uint8Array(event.data);
    if (data[0] === OUTPUT || data[0] === ERRORS) terminal.write(data.subarray(1));
    else if (data[0] === EXIT) ended = `The shell has ended with exit code ${new TextDecoder().decode(data.subarray(1))}.`;
  };
  socket.onclose = (event) => {
    resized.disconnect();
    terminal.options.disableStdin = true;
    state.textContent = event.reason || ended;
    again.hidden = false;
  };
  terminal.onData((text) => {
    // A message is bounded; what is pasted may be longer.
    for (let at = 0; at < text.length; at += 4096) send(INPUT, text.slice(at, at + 4096));
  });
  terminal.onResize(({ rows, cols }) => send(SIZE, `${rows} ${cols}`));
  again.onclick = () => {
    terminal.dispose();
    open(box);
  };
}

export async function startTerminals() {
  await loadStyles("./xterm.css");
  document.querySelectorAll("[data-terminal]").forEach(open);
}
