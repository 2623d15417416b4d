// HTTP requests in a Node.js worker: what a web handler gets, and its response in parts, at most a window ahead
// of its reader. worker.js calls this with what both need; python_web.py is its counterpart.
'use strict';

const { Writable } = require('node:stream');
const util = require('node:util');

module.exports = ({ frame, toJson, inWords, HEADER, WEB_HEAD, WEB_BODY, WINDOW, WEB_PART }) => {
  class ClientGone extends Error {}
  class Unrepresentable extends Error {}

  const MAX_HEADERS = 256;
  const MAX_HEAD_BYTES = 64 * 1024;
  const NO_BODY = new Set([204, 304]);
  const HEADER_NAME = /^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}$/;
  const HEADER_VALUE = /^[\t\x20-\x7e\x80-\xff]*$/;

  class WebRequest {
    constructor(head, body, context) {
      this.method = head.method;
      this.rawPath = head.path;
      this.path = decoded(head.path);
      this.queryString = head.query;
      this.query = new URLSearchParams(head.query);
      this.url = head.query === '' ? head.path : `${head.path}?${head.query}`;
      this.headerPairs = head.headers;
      this.headers = {};
      for (const [name, value] of head.headers) {
        const separator = name === 'cookie' ? '; ' : ', ';
        this.headers[name] = Object.hasOwn(this.headers, name) ? this.headers[name] + separator + value : value;
      }
      this.body = body;
      this.client = head.client;
      this.scheme = head.scheme;
      this.rootPath = head.root_path;
      this.caller = head.caller;
      this.context = context;
    }

    get text() {
      return this.body.toString();
    }

    json() {
      return JSON.parse(this.body.toString());
    }
  }

  function decoded(text) {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  }

  function checkedStatus(status) {
    if (Number.isInteger(status) && status >= 200 && status <= 599) return status;
    const shown = util.inspect(status);
    throw new Unrepresentable(`${shown} is no status of a response; use a number from 200 to 599`);
  }

  // An object, whose values may be arrays, pairs, or Headers.
  function checkedHeaders(headers) {
    const pairs = [];
    const entries = typeof headers?.[Symbol.iterator] === 'function' ? headers : Object.entries(headers ?? {});
    for (const [name, value] of entries) {
      for (const each of Array.isArray(value) ? value : [value]) {
        pairs.push([String(name).toLowerCase(), String(each).trim()]);
      }
    }
    const size = pairs.reduce((sum, [name, value]) => sum + name.length + value.length, 0);
    if (pairs.length > MAX_HEADERS || size > MAX_HEAD_BYTES) {
      throw new Unrepresentable(
        `a response has at most ${MAX_HEADERS} headers of ${MAX_HEAD_BYTES} bytes together; send less`,
      );
    }
    for (const [name, value] of pairs) {
      if (!HEADER_NAME.test(name) || !HEADER_VALUE.test(value)) {
        const shown = `${util.inspect(name)} with the value ${util.inspect(value)}`;
        throw new Unrepresentable(`the header ${shown} cannot be sent`);
      }
    }
    return pairs;
  }

  function toBytes(part) {
    if (typeof part === 'string') return Buffer.from(part);
    if (ArrayBuffer.isView(part)) return Buffer.from(part.buffer, part.byteOffset, part.byteLength);
    throw new Unrepresentable(`a part of a response is text or bytes, and not ${typeof part}`);
  }

  // Of one call: at most the window ahead of its reader.
  class WebSender {
    #credit = WINDOW;
    #waiting = null;
    #pending = [];

    constructor(number, isHead, send) {
      this.number = number;
      this.isHead = isHead;
      this.hasBegun = false;
      this.isCancelled = false;
      this.hasBody = true;
      this.send = send;
    }

    grant(count) {
      this.#credit += count;
      this.#wake();
    }

    cancel() {
      this.isCancelled = true;
      this.#wake();
    }

    #wake() {
      const wake = this.#waiting;
      this.#waiting = null;
      wake?.();
    }

    begin(status, headers, atOnce = false) {
      if (this.hasBegun) throw new Unrepresentable('a second head of one response');
      this.hasBegun = true;
      this.hasBody = !this.isHead && !NO_BODY.has(status);
      this.#pending.push(frame(WEB_HEAD, this.number, Buffer.from(JSON.stringify({ status, headers }))));
      if (atOnce) this.flush();
    }

    flush() {
      if (this.#pending.length === 0) return;
      const pending = this.#pending;
      this.#pending = [];
      this.send(Buffer.concat(pending));
    }

    async part(data) {
      if (!this.hasBody) return;
      for (let begin = 0; begin < data.length; begin += WEB_PART) {
        const piece = data.subarray(begin, begin + WEB_PART);
        while (this.#credit < piece.length && !this.isCancelled) {
          this.flush();
          await new Promise((resolve) => { this.#waiting = resolve; });
        }
        if (this.isCancelled) throw new ClientGone('the client has disconnected');
        this.#credit -= piece.length;
        this.#pending.push(frame(WEB_BODY, this.number, piece));
        if (begin + WEB_PART < data.length) this.flush();
      }
    }

    takePending() {
      const pending = this.#pending;
      this.#pending = [];
      return pending;
    }
  }

  // The second argument of a handler: what is written to it is sent.
  class WebResponse extends Writable {
    #sender;
    #headers = [];

    constructor(sender) {
      super({ decodeStrings: true });
      this.#sender = sender;
      this.statusCode = 200;
      this.on('error', () => {}); // those who wait for its end get it
    }

    get headersSent() {
      return this.#sender.hasBegun;
    }

    status(status) {
      this.statusCode = status;
      return this;
    }

    setHeader(name, value) {
      const key = String(name).toLowerCase();
      this.#headers = this.#headers.filter(([each]) => each !== key);
      this.#headers.push([key, value]);
      return this;
    }

    appendHeader(name, value) {
      this.#headers.push([String(name).toLowerCase(), value]);
      return this;
    }

    getHeader(name) {
      return this.#headers.find(([each]) => each === String(name).toLowerCase())?.[1];
    }

    writeHead(status, headers = {}) {
      this.statusCode = status;
      for (const [name, value] of Object.entries(headers)) this.setHeader(name, value);
      this.flushHeaders();
      return this;
    }

    flushHeaders() {
      if (this.#sender.hasBegun) return;
      this.#begin();
      this.#sender.flush();
    }

    json(value) {
      if (this.getHeader('content-type') === undefined) this.setHeader('content-type', 'application/json');
      return this.end(toJson(value));
    }

    #begin() {
      this.#sender.begin(checkedStatus(this.statusCode), checkedHeaders(this.#headers));
    }

    _write(chunk, encoding, done) {
      const send = async () => {
        if (!this.#sender.hasBegun) this.#begin();
        await this.#sender.part(chunk);
        this.#sender.flush();
      };
      send().then(() => done(), done);
    }

    _final(done) {
      try {
        if (!this.#sender.hasBegun) this.#begin();
        done();
      } catch (error) {
        done(error);
      }
    }
  }

  const isStream = (body) => body !== null && typeof body === 'object' && !ArrayBuffer.isView(body)
    && (typeof body[Symbol.asyncIterator] === 'function' || typeof body.next === 'function');

  function usualMedia(body) {
    if (typeof body === 'string') return 'text/plain; charset=utf-8';
    return ArrayBuffer.isView(body) || isStream(body) ? 'application/octet-stream' : 'application/json';
  }

  const RESPONSE_KEYS = new Set(['status', 'headers', 'body']);

  function toResponse(value) {
    let [status, headers, body] = [200, {}, value];
    const isFetched = typeof Response === 'function' && value instanceof Response;
    const isResponse = value !== null && typeof value === 'object' && !Array.isArray(value) && !isStream(value)
      && !ArrayBuffer.isView(value) && ('status' in value || 'body' in value)
      && Object.keys(value).every((key) => RESPONSE_KEYS.has(key));
    if (isFetched || isResponse) ({ status = 200, headers = {}, body = null } = value);
    else if (value === null || value === undefined) [status, body] = [204, null];
    const pairs = checkedHeaders(headers);
    status = checkedStatus(status);
    const hasMedia = pairs.some(([name]) => name === 'content-type');
    if (body !== null && body !== undefined && !NO_BODY.has(status) && !hasMedia) {
      pairs.push(['content-type', usualMedia(body)]);
    }
    return [status, pairs, body ?? ''];
  }

  async function sendResponse(sender, value) {
    const [status, pairs, body] = toResponse(value);
    if (isStream(body)) {
      try {
        sender.begin(status, pairs, true);
        if (!sender.hasBody) return;
        const isIterable = typeof body[Symbol.asyncIterator] === 'function';
        for await (const part of isIterable ? body : { [Symbol.iterator]: () => body }) {
          await sender.part(toBytes(part));
          sender.flush();
        }
      } finally {
        if (typeof body.destroy === 'function') body.destroy();
        else await body.return?.();
      }
      return;
    }
    const data = typeof body === 'string' || ArrayBuffer.isView(body) ? toBytes(body) : Buffer.from(toJson(body));
    const headers = pairs.filter(([name]) => name !== 'content-length');
    if (!NO_BODY.has(status)) headers.push(['content-length', String(data.length)]);
    sender.begin(status, headers);
    await sender.part(data);
  }

  async function respond(sender, handler, context, head, body) {
    const response = new WebResponse(sender);
    const written = new Promise((resolve, reject) => {
      response.once('finish', resolve);
      response.once('error', reject);
    });
    written.catch(() => {});
    let value = handler(new WebRequest(head, body, { ...context }), response);
    if (typeof value?.then === 'function') value = await Promise.race([value, written.then(() => undefined)]);
    if (value === response) value = undefined;
    const isWritten = handler.length > 1 || sender.hasBegun || response.writableEnded || response.writableLength > 0;
    if (value === undefined && isWritten) {
      await written;
    } else {
      await sendResponse(sender, value);
    }
  }

  // A call of a web function by /invoke: its parameters are the JSON body of a POST, and the response is returned.
  async function collectResponse(handler, params, context) {
    const body = Buffer.from(JSON.stringify(params));
    const frames = [];
    const sender = new WebSender(0n, false, (data) => frames.push(data));
    const head = {
      method: 'POST', path: '/', query: '', client: '', scheme: 'http', root_path: '', caller: '',
      headers: [['content-type', 'application/json'], ['content-length', String(body.length)]],
    };
    const collected = sender.part.bind(sender);
    sender.part = async (data) => {
      sender.grant(data.length);
      await collected(data);
    };
    await respond(sender, handler, context, head, body);
    let left = Buffer.concat([...frames, ...sender.takePending()]);
    let [response, parts] = [null, []];
    while (left.length > 0) {
      const length = left.readUInt32LE(0);
      const payload = left.subarray(HEADER, HEADER + length);
      if (left.readUInt8(4) === WEB_HEAD) response = JSON.parse(payload.toString());
      else parts.push(payload);
      left = left.subarray(HEADER + length);
    }
    const content = Buffer.concat(parts);
    const media = response.headers.find(([name]) => name === 'content-type')?.[1] ?? '';
    const isJson = media.split(';')[0].trim() === 'application/json';
    return { ...response, body: isJson ? JSON.parse(content.toString()) : inWords(content) };
  }

  return { ClientGone, Unrepresentable, WebSender, collectResponse, respond };
};
