// What the three scripts share: arguments, output and a quiet logger.
//
// Each script prints one JSON object a line to stdout; the last one has
// "event":"done". Warnings and errors of the client go to stderr.
import { parseArgs } from 'node:util';

// options reads the command line. Every option takes a value but the booleans.
export function options(strings, booleans = [], multiple = []) {
  const spec = {};
  for (const name of ['endpoint', 'topic', 'count', 'timeout', ...strings]) spec[name] = { type: 'string' };
  for (const name of ['tls', ...booleans]) spec[name] = { type: 'boolean' };
  for (const name of multiple) spec[name] = { type: 'string', multiple: true };
  const { values } = parseArgs({ options: spec });
  if (!values.endpoint || !values.topic) {
    console.error('--endpoint host:port and --topic name are needed');
    process.exit(2);
  }
  return values;
}

// number reads a numeric option.
export function number(text, fallback) {
  if (text === undefined) return fallback;
  const n = Number(text);
  if (!Number.isFinite(n)) {
    console.error(`not a number: ${text}`);
    process.exit(2);
  }
  return n;
}

// emit prints one event.
export function emit(event, fields = {}) {
  process.stdout.write(JSON.stringify({ event, ...fields }) + '\n');
}

// logger keeps the client from writing to the home folder.
export const logger = {
  info() {},
  debug() {},
  warn: (...a) => process.env.VERBOSE && console.error('WARN', ...a),
  error: (...a) => process.env.VERBOSE && console.error('ERROR', ...a),
  close() {},
};

// describe is a received message as the tests compare it.
export function describe(m) {
  return {
    messageId: m.messageId,
    topic: m.topic,
    body: m.body.toString('utf8'),
    tag: m.tag,
    keys: m.keys,
    properties: Object.fromEntries(m.properties),
    attempt: m.deliveryAttempt,
    offset: m.offset,
    corrupted: m.corrupted === true,
    bornAt: m.bornTimestamp?.getTime(),
    receivedAt: Date.now(),
    broker: m.endpoints?.facade,
  };
}

// deadline ends the process with code 1 when the work is not done in time.
export function deadline(ms, state) {
  setTimeout(() => {
    emit('timeout', state());
    process.exit(1);
  }, ms).unref();
}

// pause waits.
export const pause = ms => new Promise(r => setTimeout(r, ms));

// failed reports an error of the client.
export const failed = err => ({ error: err?.message ?? String(err), name: err?.name, code: err?.code });
