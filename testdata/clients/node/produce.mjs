// Sends messages with the official Producer, one after another.
//
//   node produce.mjs --endpoint host:port --topic T [--count 1] [--start 0]
//     [--prefix text] [--size bytes] [--tag t] [--key k]... [--property k=v]...
//     [--interval ms] [--max-attempts 1] [--keep-going] [--tls] [--timeout ms]
//
// The body is prefix + index (padded with dots to --size). {i} in prefix, tags,
// keys and property values becomes the index. Events: ready; sent {index,
// messageId, offset}; error {index, error}; done {sent, failed}. Without
// --keep-going the first error ends the run. SIGTERM ends it after the message
// in flight.
import rocketmq from 'rocketmq-client-nodejs';
import { deadline, emit, failed, logger, number, options, pause } from './common.mjs';

const o = options(['start', 'prefix', 'size', 'tag', 'interval', 'max-attempts'], ['keep-going'], ['key', 'property']);
const count = number(o.count, 1);
const start = number(o.start, 0);
const size = number(o.size, 0);
const state = { sent: 0, failed: 0 };
deadline(number(o.timeout, 60000), () => state);
let stop = false;
process.on('SIGTERM', () => { stop = true; });

const fill = (text, i) => text.replaceAll('{i}', String(i));

const producer = new rocketmq.Producer({
  endpoints: o.endpoint, namespace: '', topics: [o.topic], sslEnabled: o.tls === true, logger,
  maxAttempts: number(o['max-attempts'], 1),
});
try {
  await producer.startup();
} catch (err) {
  emit('error', failed(err));
  process.exit(1);
}
emit('ready');

for (let i = start; i < start + count && !stop; i++) {
  const properties = new Map((o.property ?? []).map(p => {
    const at = p.indexOf('=');
    return [p.slice(0, at), fill(p.slice(at + 1), i)];
  }));
  try {
    const receipt = await producer.send({
      topic: o.topic, tag: o.tag && fill(o.tag, i), keys: (o.key ?? []).map(k => fill(k, i)), properties,
      body: Buffer.from((fill(o.prefix ?? '', i) + i).padEnd(size, '.')),
    });
    state.sent++;
    emit('sent', { index: i, messageId: receipt.messageId, offset: receipt.offset, at: Date.now() });
  } catch (err) {
    state.failed++;
    emit('error', { index: i, ...failed(err) });
    if (!o['keep-going']) break;
  }
  if (o.interval) await pause(number(o.interval, 0));
}
await producer.shutdown();
emit('done', state);
process.exit(state.failed > 0 && !o['keep-going'] ? 1 : 0);
