// The program in a Node.js worker: `node worker.js FD` loads a function and handles its calls until the socket
// closes. The protocol is in worker_frames.py; python_worker.py is its counterpart. It starts without a function,
// and nothing passes between calls: each has its own context, parameters and output. FD must be 3 to 15:
// Node.js closes these, and no others, in child processes of a function.
'use strict';

const { AsyncLocalStorage } = require('node:async_hooks');
const fs = require('node:fs');
const net = require('node:net');
const path = require('node:path');
const { pathToFileURL } = require('node:url');
const util = require('node:util');

const HEADER = 16; // length of the payload u32, kind u8, three of padding, call u64
const OUTCOME = 13; // outcome u8, duration f64, length of the output u32
const [LOAD, CALL, CANCEL, LOADED, FAILED, RESULT] = [1, 2, 3, 10, 11, 12];
const [WEB_CALL, GRANT, WEB_HEAD, WEB_BODY] = [4, 5, 13, 14];
const [TRACED, TRACEPARENT_BYTES] = [2, 55]; // a flag of a call, and what then comes before the parameters
const WINDOW = 256 * 1024;
const WEB_PART = 64 * 1024;
const WANTS_OUTPUT = 1;
const [OK, RAISED, UNREPRESENTABLE, TOO_LARGE] = [0, 1, 2, 3];
const MAX_ERROR_BYTES = 64 * 1024;
const OWN_FILES = path.join(__dirname, 'worker');
const MOST_TRIES = 20_000; // to write to a full socket while exiting

const descriptor = Number(process.argv[2]);
const socket = new net.Socket({ fd: descriptor, readable: true, writable: true });
const scope = new AsyncLocalStorage(); // the current call
const running = new Map();
let request = null; // the load frame
let handler = null;
let cause = null; // why the process exits, if not on its own
let leftovers = null;

// Output

class Output {
  #parts = [];
  #size = 0;
  #isOpen = true;

  add(data) {
    const space = request.max_output_bytes + 1 - this.#size;
    if (!this.#isOpen || space <= 0) return;
    this.#parts.push(Buffer.from(data.subarray(0, space)));
    this.#size += data.length;
  }

  // All stored output; later output is in the logs only.
  end() {
    const [stored, most] = [Buffer.concat(this.#parts), request.max_output_bytes];
    this.#parts = [];
    this.#isOpen = false;
    if (stored.length <= most) return stored;
    const note = `\n... output cut after ${most} bytes; the rest is in the logs of the function\n`;
    return Buffer.from(new util.TextDecoder().decode(stored.subarray(0, most), { stream: true }) + note);
  }
}

for (const stream of [process.stdout, process.stderr]) {
  const write = stream.write.bind(stream);
  stream.write = (chunk, encoding, done) => {
    const named = typeof encoding === 'string' ? encoding : undefined;
    scope.getStore()?.output.add(typeof chunk === 'string' ? Buffer.from(chunk, named) : chunk);
    return write(chunk, encoding, done);
  };
  stream.on('error', () => {}); // the logs are not read any more, which is no reason to end
}

// Sending

function frame(kind, number, ...parts) {
  const header = Buffer.alloc(HEADER);
  header.writeUInt32LE(parts.reduce((sum, part) => sum + part.length, 0), 0);
  header.writeUInt8(kind, 4);
  header.writeBigUInt64LE(number, 8);
  return Buffer.concat([header, ...parts]);
}

function answer(call, outcome, body, printed = call.output.end()) {
  running.delete(call.number);
  const output = outcome === OK && !call.wantsOutput ? Buffer.alloc(0) : printed;
  const head = Buffer.alloc(OUTCOME);
  head.writeUInt8(outcome, 0);
  head.writeDoubleLE(call.seconds ?? (performance.now() - call.begun) / 1000, 1);
  head.writeUInt32LE(output.length, 9);
  return frame(RESULT, call.number, head, output, body);
}

const failure = (error, output) => frame(FAILED, 0n, Buffer.from(JSON.stringify({ error, output })));

function summary(error) {
  return error instanceof Error ? `${error.name}: ${error.message}` : `it threw ${util.inspect(error)}`;
}

// The message of an error, then its stack, without this program's own lines.
function explain(error) {
  let text;
  try {
    const isTheirs = (line) => !line.includes(OWN_FILES) && !line.includes('node:internal');
    text = error instanceof NotLoadable ? error.message : `${summary(error)}\n\n${util.inspect(error)}`;
    text = text.split('\n').filter(isTheirs).join('\n');
  } catch {
    text = 'an error that cannot be told';
  }
  return text.length <= MAX_ERROR_BYTES / 4 ? text : `${text.slice(0, MAX_ERROR_BYTES / 4)}\n... cut ...`;
}

// Loading

class NotLoadable extends Error {}

function fileOf(name) {
  const base = path.join(request.folder, name);
  for (const candidate of [base, `${base}.mjs`]) {
    try {
      return require.resolve(candidate);
    } catch (error) {
      if (error.code !== 'MODULE_NOT_FOUND') throw error;
    }
  }
  return null;
}

async function exportsOf(file) {
  try {
    return require(file);
  } catch (error) {
    if (error.code !== 'ERR_REQUIRE_ESM' && error.code !== 'ERR_REQUIRE_ASYNC_MODULE') throw error;
    return import(pathToFileURL(file).href);
  }
}

// `module`, which exports a function or one called `handler`, or `module.function`.
async function find(name) {
  let [file, attribute] = [fileOf(name), null];
  if (file === null && name.includes('.')) {
    const dot = name.lastIndexOf('.');
    const module = name.slice(0, dot);
    attribute = name.slice(dot + 1);
    file = fileOf(module) ?? fileOf(module.replaceAll('.', '/'));
  }
  if (file === null) {
    const there = fs.readdirSync(request.folder).sort().slice(0, 20).join(', ') || 'nothing';
    throw new NotLoadable(
      `there is no module in the code for handler '${name}', which must read \`module\` or `
        + `\`module.function\`; at its top there is ${there}`,
    );
  }
  const exported = await exportsOf(file);
  const candidates = attribute === null
    ? [exported, exported?.handler, exported?.default, exported?.default?.handler]
    : [exported?.[attribute], exported?.default?.[attribute]];
  const found = candidates.find((candidate) => typeof candidate === 'function');
  if (found === undefined) {
    const known = Object.keys(exported ?? {}).slice(0, 20).join(', ') || 'nothing';
    const needed = attribute === null ? 'a function, or one called `handler`' : `a function '${attribute}'`;
    throw new NotLoadable(`handler '${name}' needs a module that exports ${needed}; it exports ${known}`);
  }
  return found;
}

async function load(payload) {
  request = JSON.parse(payload.toString());
  const call = { number: 0n, output: new Output() };
  running.set(call.number, call);
  for (const key of Object.keys(process.env)) delete process.env[key];
  Object.assign(process.env, request.environment);
  process.chdir(request.folder);
  try {
    handler = await scope.run(call, find, request.handler);
  } catch (error) {
    running.delete(call.number);
    socket.end(failure(explain(error), `${call.output.end()}`), () => process.exit(1));
    return;
  }
  running.delete(call.number);
  call.output.end();
  leftovers = new Leftovers();
  const loaded = { runtime: `Node.js ${process.versions.node}` };
  socket.write(frame(LOADED, 0n, Buffer.from(JSON.stringify(loaded))));
}

// Leftover processes of a call, as in python_leftovers.py

const INIT_NAME = 'skerry-init\n';
const ROUNDS = 1000;
const PAUSE_MS = 1;

class Leftovers {
  #file = null;
  #read = Buffer.alloc(128);
  #newest = '';
  #loaded = new Map();

  constructor() {
    if (process.getuid() === 0 || fs.readFileSync('/proc/1/comm', 'latin1') !== INIT_NAME) return;
    this.#file = fs.openSync('/proc/loadavg', 'r');
    this.#newest = this.#readNewest();
    this.#loaded = processes();
  }

  kill() {
    if (this.#file === null) return;
    const newest = this.#readNewest();
    if (newest !== '' && newest === this.#newest) return;
    this.#newest = newest;
    for (let round = 0; round < ROUNDS; round += 1) {
      if (!this.#killAll()) return;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, PAUSE_MS);
    }
    process.kill(process.pid, 'SIGKILL');
  }

  #readNewest() {
    try {
      const text = this.#read.latin1Slice(0, fs.readSync(this.#file, this.#read, 0, this.#read.length, 0));
      return text.slice(text.lastIndexOf(' ') + 1);
    } catch {
      return ''; // the function has closed it
    }
  }

  // True if a living process was left.
  #killAll() {
    if (this.#loaded.size === 0 && !killed(-1)) return false; // all but the init and this process
    const parents = processes();
    const left = [...parents.keys()].filter((pid) => !this.#isKept(pid, parents));
    left.forEach(killed);
    return left.length > 0;
  }

  #isKept(pid, parents) {
    while (parents.has(pid) && !this.#loaded.has(pid)) pid = parents.get(pid);
    return this.#loaded.has(pid);
  }
}

function killed(pid) {
  try {
    return process.kill(pid, 'SIGKILL');
  } catch (error) {
    if (error.code !== 'ESRCH') throw error;
    return false;
  }
}

// Living processes in the cell besides its init and this one, each with its parent.
function processes() {
  const found = new Map();
  for (const name of fs.readdirSync('/proc')) {
    const pid = Number(name);
    if (!(pid > 1) || pid === process.pid) continue;
    try {
      const stat = fs.readFileSync(`/proc/${pid}/stat`, 'latin1');
      const [state, parent] = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
      if (state !== 'Z' && state !== 'X') found.set(pid, Number(parent));
    } catch {
      // it has ended meanwhile
    }
  }
  return found;
}

// Calls

function inWords(bytes) {
  const data = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  try {
    return new util.TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(data);
  } catch {
    return { base64: data.toString('base64') };
  }
}

function refuseInfinite(_, value) {
  if (typeof value !== 'number' || Number.isFinite(value)) return value;
  throw new RangeError(`${value} is no JSON number`);
}

function toJson(value) {
  if (value === undefined) return 'null';
  const text = JSON.stringify(value);
  if (text === undefined) throw new TypeError(`a ${typeof value} is no JSON`);
  if (text.includes('null')) JSON.stringify(value, refuseInfinite); // else they are silently null
  return text;
}

async function collect(values) {
  const all = [];
  for await (const value of values) all.push(value);
  return all;
}

// The final value: a list if it is a generator, text if it is bytes.
function settled(value) {
  if (value === null || typeof value !== 'object') return value;
  if (ArrayBuffer.isView(value)) return inWords(value);
  if (typeof value.next !== 'function') return value;
  if (typeof value[Symbol.iterator] === 'function') return [...value];
  return typeof value[Symbol.asyncIterator] === 'function' ? collect(value) : value;
}

async function handle(call, params) {
  let value;
  try {
    const given = JSON.parse(params.toString());
    call.begun = performance.now();
    value = request.is_web
      ? web.collectResponse(handler, given, request.context)
      : handler(given, { ...request.context, ...call.trace });
    if (typeof value?.then === 'function') value = await value;
    value = settled(value);
    if (typeof value?.then === 'function') value = await value;
  } catch (error) {
    return [RAISED, Buffer.from(explain(error))];
  } finally {
    call.seconds = (performance.now() - call.begun) / 1000;
  }
  let text;
  try {
    text = toJson(value);
  } catch (error) {
    const reason = `the handler returned what JSON cannot hold: ${summary(error)}; `
      + 'return objects, arrays, text, bytes, finite numbers, true, false, null or nothing';
    return [UNREPRESENTABLE, Buffer.from(reason)];
  }
  const result = Buffer.from(text);
  if (result.length <= request.max_result_bytes) return [OK, result];
  const sizes = `${result.length} bytes of JSON, and ${request.max_result_bytes} are allowed`;
  const reason = `the handler returned ${sizes}; return less, or store it elsewhere and return where`;
  return [TOO_LARGE, Buffer.from(reason)];
}

// Calls of web functions

const web = require('./worker_web.js')({ frame, toJson, inWords, HEADER, WEB_HEAD, WEB_BODY, WINDOW, WEB_PART });

async function runWeb(number, payload) {
  if (running.size === 0) leftovers.kill();
  const length = payload.readUInt32LE(0);
  const head = JSON.parse(payload.subarray(4, 4 + length).toString());
  const sender = new web.WebSender(number, head.method === 'HEAD', (data) => socket.write(data));
  const call = { number, wantsOutput: false, output: new Output(), begun: performance.now(), sender };
  running.set(number, call);
  let [outcome, text] = [OK, ''];
  try {
    await scope.run(call, web.respond, sender, handler, request.context, head, payload.subarray(4 + length));
  } catch (error) {
    if (!(error instanceof web.ClientGone)) {
      const said = error instanceof web.Unrepresentable ? error.message : explain(error);
      scope.run(call, () => process.stderr.write(`${said}\n`)); // nobody but the logs gets it
      const failed = error instanceof web.Unrepresentable ? UNREPRESENTABLE : RAISED;
      if (!sender.isCancelled) [outcome, text] = [failed, said];
    }
  }
  if (running.has(number)) {
    const pending = outcome === OK ? sender.takePending() : [];
    call.output.end();
    socket.write(Buffer.concat([...pending, answer(call, outcome, Buffer.from(text), Buffer.alloc(0))]));
  }
  if (running.size === 0) leftovers.kill();
}

async function run(number, payload) {
  if (running.size === 0) leftovers.kill(); // processes that were started since the last call
  const wantsOutput = (payload[0] & WANTS_OUTPUT) !== 0;
  const call = { number, wantsOutput, output: new Output(), begun: performance.now(), trace: {} };
  running.set(number, call);
  let start = 1;
  if ((payload[0] & TRACED) !== 0) {
    start += TRACEPARENT_BYTES;
    call.trace.traceparent = payload.subarray(1, start).toString();
  }
  const [outcome, body] = await scope.run(call, handle, call, payload.subarray(start));
  if (running.has(number)) socket.write(answer(call, outcome, body));
  if (running.size === 0) leftovers.kill();
}

// Receiving

const received = { chunks: [], size: 0 };

function take(size) {
  const all = received.chunks.length === 1 ? received.chunks[0] : Buffer.concat(received.chunks);
  received.chunks = size < all.length ? [all.subarray(size)] : [];
  received.size = all.length - size;
  return all.subarray(0, size);
}

function cancel(number) {
  const sender = running.get(number)?.sender;
  if (sender) sender.cancel(); // it is over when its handler is
  else running.delete(number); // it goes on without a reply
}

let expected = null; // the header of a frame whose payload is still coming

function receive(chunk) {
  received.chunks.push(chunk);
  received.size += chunk.length;
  for (;;) {
    if (expected === null) {
      if (received.size < HEADER) return;
      const header = take(HEADER);
      const [length, kind] = [header.readUInt32LE(0), header.readUInt8(4)];
      expected = { length, kind, number: header.readBigUInt64LE(8) };
    }
    if (received.size < expected.length) return;
    const { length, kind, number } = expected;
    expected = null;
    const payload = length === 0 ? Buffer.alloc(0) : take(length);
    if (kind === LOAD) load(payload);
    else if (kind === CALL) run(number, payload);
    else if (kind === WEB_CALL) runWeb(number, payload);
    else if (kind === GRANT) running.get(number)?.sender?.grant(payload.readUInt32LE(0));
    else if (kind === CANCEL) cancel(number);
  }
}

// The end

function leave() {
  running.clear();
  process.exit(0);
}

process.on('uncaughtException', (error) => {
  cause = explain(error);
  process.stderr.write(`${cause}\n`);
  process.exit(1);
});

// Pending calls get a reply, also if the function ends its own process.
process.on('exit', (code) => {
  const guilty = scope.getStore();
  const reason = cause ?? `it called process.exit(${code}); return a value or throw an error instead`;
  for (const call of [...running.values()]) {
    const text = guilty && guilty !== call ? `another call ended its worker: ${reason}` : reason;
    const isLoading = call.number === 0n;
    let data = isLoading ? failure(text, `${call.output.end()}`) : answer(call, RAISED, Buffer.from(text));
    for (let tries = 0; data.length > 0 && tries < MOST_TRIES; tries += 1) {
      try {
        data = data.subarray(fs.writeSync(descriptor, data));
      } catch (error) {
        if (error.code !== 'EAGAIN') return;
      }
    }
  }
});

socket.on('data', receive);
socket.on('end', leave);
socket.on('error', leave);
