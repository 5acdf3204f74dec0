// Drives the official RocketMQ 5 client for Node.js; see ../PROTOCOL.md.
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import rocketmq from 'rocketmq-client-nodejs';

const clients = new Map();
const received = new Map();

const emit = value => process.stdout.write(JSON.stringify(value) + '\n');

// logger keeps the client from writing to the home folder.
const log = (...a) => process.env.VERBOSE && console.error(...a);
const logger = { info() {}, debug() {}, warn: log, error: log, close() {} };

const common = r => ({ endpoints: r.endpoint, namespace: '', sslEnabled: r.tls === true, logger });

function describe(m) {
  const seen = {
    messageId: m.messageId, topic: m.topic, size: m.body.length,
    sha256: createHash('sha256').update(m.body).digest('hex'), tag: m.tag ?? '', keys: m.keys.toSorted(),
    properties: Object.fromEntries(m.properties), attempt: m.deliveryAttempt, corrupted: m.corrupted === true,
  };
  if (m.body.length <= 4096) seen.body = m.body.toString('base64');
  return seen;
}

async function started(r, client) {
  await client.startup();
  clients.set(r.client, client);
}

const operations = {
  producer: r => started(r, new rocketmq.Producer({ ...common(r), topics: r.topics, maxAttempts: r.attempts })),

  simple: r => started(r, new rocketmq.SimpleConsumer({
    ...common(r), consumerGroup: r.group, subscriptions: new Map(Object.entries(r.topics)), awaitDuration: r.await, maxRetryAttempts: 1,
  })),

  push: r => started(r, new rocketmq.PushConsumer({
    ...common(r), consumerGroup: r.group, subscriptions: new Map(Object.entries(r.topics)),
    messageListener: {
      async consume(m) {
        const ok = m.deliveryAttempt > (r.fail ?? 0);
        emit({ event: 'message', client: r.client, ok, message: describe(m) });
        return ok ? rocketmq.ConsumeResult.SUCCESS : rocketmq.ConsumeResult.FAILURE;
      },
    },
  })),

  async send(r) {
    const m = {
      topic: r.topic, tag: r.tag, keys: r.keys ?? [], properties: new Map(Object.entries(r.properties ?? {})),
      body: r.body === undefined ? Buffer.alloc(r.size, 'abcdefghijklmnopqrstuvwxyz') : Buffer.from(r.body, 'base64'),
    };
    if (r.messageGroup) m.messageGroup = r.messageGroup;
    if (r.delay) m.delay = r.delay;
    const receipt = await clients.get(r.client).send(m);
    return { messageId: receipt.messageId };
  },

  async receive(r) {
    const messages = [];
    for (const m of await clients.get(r.client).receive(r.max, r.invisible)) {
      const ref = received.size + 1;
      received.set(ref, m);
      messages.push({ ref, ...describe(m) });
    }
    return { messages };
  },

  ack: r => clients.get(r.client).ack(received.get(r.ref)),

  invisible: r => clients.get(r.client).changeInvisibleDuration(received.get(r.ref), r.invisible),

  async close(r) {
    const client = clients.get(r.client);
    clients.delete(r.client);
    await client.shutdown();
  },
};

async function serve(r) {
  try {
    emit({ id: r.id, ...await operations[r.op](r) });
  } catch (err) {
    emit({ id: r.id, error: { text: err?.message ?? String(err), name: err?.name ?? '' } });
  }
}

const manifest = new URL('node_modules/rocketmq-client-nodejs/package.json', import.meta.url);
emit({ event: 'ready', language: 'node', version: JSON.parse(readFileSync(manifest, 'utf8')).version });
for await (const line of createInterface({ input: process.stdin })) serve(JSON.parse(line));
process.exit(0);
