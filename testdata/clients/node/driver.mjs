// Drives the official RocketMQ 5 client for Node.js; see ../PROTOCOL.md.
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import rocketmq from 'rocketmq-client-nodejs';
import definitions from 'rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb.js';

const clients = new Map();
const received = new Map();
const transactions = new Map();

const emit = value => process.stdout.write(JSON.stringify(value) + '\n');

// logger keeps the client from writing to the home folder.
const log = (...a) => console.error(new Date().toISOString(), ...a);
const logger = { info() {}, debug() {}, warn: log, error: log, close() {} };

const common = r => ({
  endpoints: r.endpoint, namespace: '', sslEnabled: r.tls === true, logger,
  ...r.accessKey && { sessionCredentials: { accessKey: r.accessKey, accessSecret: r.secretKey } },
});

const subscriptions = r => new Map(Object.entries(r.topics).map(([topic, expression]) =>
  [topic, r.sql ? new rocketmq.FilterExpression(expression, definitions.FilterType.SQL) : expression]));

function describe(m) {
  const seen = {
    messageId: m.messageId, topic: m.topic, size: m.body.length,
    sha256: createHash('sha256').update(m.body).digest('hex'), tag: m.tag ?? '', keys: m.keys.toSorted(),
    properties: Object.fromEntries(m.properties), attempt: m.deliveryAttempt, corrupted: m.corrupted === true,
    messageGroup: m.messageGroup, deliveryTimestamp: m.deliveryTimestamp?.getTime(), priority: m.priority, liteTopic: m.liteTopic,
  };
  if (m.body.length <= 4096) seen.body = m.body.toString('base64');
  return seen;
}

async function started(r, client) {
  await client.startup();
  clients.set(r.client, client);
}

const sleep = milliseconds => new Promise(resolve => setTimeout(resolve, milliseconds));

// listener fails, takes its time and tells as the request says.
function listener(r) {
  const seen = new Map();
  let begun = 0;
  return {
    async consume(m) {
      const began = Date.now();
      if (r.stall !== undefined && begun++ >= r.stall) {
        emit({ event: 'stall', client: r.client, message: describe(m) });
        await new Promise(() => {});
      }
      if (r.hold) await sleep(r.hold);
      const n = (seen.get(m.messageId) ?? 0) + 1;
      seen.set(m.messageId, n);
      const ok = n > (r.fail ?? 0);
      emit({ event: 'message', client: r.client, ok, began, ended: Date.now(), message: describe(m) });
      return ok ? rocketmq.ConsumeResult.SUCCESS : rocketmq.ConsumeResult.FAILURE;
    },
  };
}

const asked = new Map();

// checker answers the checks of a message as its property says, whoever is asked.
const checker = r => ({
  async check(m) {
    const { COMMIT, ROLLBACK, TRANSACTION_RESOLUTION_UNSPECIFIED } = definitions.TransactionResolution;
    const resolutions = { commit: COMMIT, rollback: ROLLBACK, unknown: TRANSACTION_RESOLUTION_UNSPECIFIED };
    const n = asked.get(m.messageId) ?? 0;
    asked.set(m.messageId, n + 1);
    const answers = (m.properties.get('checks') ?? 'unknown').split(',');
    const answer = answers[Math.min(n, answers.length - 1)];
    emit({ event: 'check', client: r.client, answer, message: describe(m) });
    if (answer === 'none') throw new Error('as told');
    return resolutions[answer];
  },
});

// build makes a message of the client's kind.
function build(r) {
  const m = {
    topic: r.topic, tag: r.tag, keys: r.keys ?? [], properties: new Map(Object.entries(r.properties ?? {})),
    body: r.body === undefined ? Buffer.alloc(r.size, 'abcdefghijklmnopqrstuvwxyz') : Buffer.from(r.body, 'base64'),
  };
  if (r.messageGroup) m.messageGroup = r.messageGroup;
  if (r.delay) m.delay = r.delay;
  if (r.priority !== undefined) m.priority = r.priority;
  if (r.liteTopic) m.liteTopic = r.liteTopic;
  return m;
}

// from is where a subscription is to go on.
const from = r => ({
  last: () => rocketmq.OffsetOption.LAST_OFFSET, min: () => rocketmq.OffsetOption.MIN_OFFSET, max: () => rocketmq.OffsetOption.MAX_OFFSET,
  offset: rocketmq.OffsetOption.ofOffset, tail: rocketmq.OffsetOption.ofTailN, time: rocketmq.OffsetOption.ofTimestamp,
})[r.from](r.n ?? 0);

const operations = {
  producer: r => started(r, new rocketmq.Producer({
    ...common(r), topics: r.topics, maxAttempts: r.attempts, ...r.checks && { checker: checker(r) },
  })),

  simple: r => started(r, new rocketmq.SimpleConsumer({
    ...common(r), consumerGroup: r.group, subscriptions: subscriptions(r), awaitDuration: r.await, maxRetryAttempts: 1,
  })),

  push: r => started(r, new rocketmq.PushConsumer({
    ...common(r), consumerGroup: r.group, subscriptions: subscriptions(r), messageListener: listener(r),
  })),

  async lite(r) {
    const client = await new rocketmq.LitePushConsumerBuilder().setClientConfiguration(common(r)).setConsumerGroup(r.group)
      .bindTopic(r.topic).setMessageListener(listener(r)).build();
    clients.set(r.client, client);
    for (const topic of r.liteTopics) await client.subscribeLite(topic);
  },

  subscribe: r => r.from === undefined ? clients.get(r.client).subscribeLite(r.liteTopic)
    : clients.get(r.client).subscribeLite(r.liteTopic, from(r)),

  unsubscribe: r => clients.get(r.client).unsubscribeLite(r.liteTopic),

  liteTopics: r => ({ liteTopics: [...clients.get(r.client).getLiteTopicSet()].sort() }),

  async send(r) {
    const { messageId, recallHandle } = await clients.get(r.client).send(build(r));
    return { messageId, recallHandle };
  },

  async half(r) {
    const transaction = clients.get(r.client).beginTransaction();
    const { messageId } = await clients.get(r.client).send(build(r), transaction);
    const tx = transactions.size + 1;
    transactions.set(tx, transaction);
    return { messageId, tx };
  },

  end: r => r.commit ? transactions.get(r.tx).commit() : transactions.get(r.tx).rollback(),

  async recall(r) {
    const { messageId } = await clients.get(r.client).recallMessage(r.topic, r.handle);
    return { messageId };
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
    await (client.shutdown?.() ?? client.close());
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
