// Receives with the official PushConsumer.
//
//   node push.mjs --endpoint host:port --topic T --group G [--count 1] [--tag expr]
//     [--fail-attempts n] [--work ms] [--linger 500] [--graceful] [--tls] [--timeout ms]
//
// Ends when --count different messages were consumed; 0 goes on until SIGTERM. A
// delivery whose attempt is at most --fail-attempts is failed, so that it comes
// again. Events: ready; message {...; ok}; done {messages, deliveries}. After the
// last message the process lingers for the acknowledgements; --graceful shuts the
// consumer down instead, which waits for its open polls.
import rocketmq from 'rocketmq-client-nodejs';
import { deadline, describe, emit, failed, logger, number, options, pause } from './common.mjs';

const o = options(['group', 'tag', 'fail-attempts', 'work', 'linger'], ['graceful']);
const count = number(o.count, 1);
const failAttempts = number(o['fail-attempts'], 0);
const seen = new Set();
let deliveries = 0;
let finish;
const finished = new Promise(r => { finish = r; });
if (count > 0) deadline(number(o.timeout, 60000), () => ({ messages: seen.size, deliveries }));
process.on('SIGTERM', () => finish());

const consumer = new rocketmq.PushConsumer({
  endpoints: o.endpoint, namespace: '', consumerGroup: o.group, sslEnabled: o.tls === true, logger,
  subscriptions: new Map([[o.topic, o.tag ?? '*']]),
  messageListener: {
    async consume(m) {
      deliveries++;
      const ok = !(m.deliveryAttempt <= failAttempts);
      if (o.work) await pause(number(o.work, 0));
      emit('message', { ...describe(m), ok });
      if (!ok) return rocketmq.ConsumeResult.FAILURE;
      seen.add(m.messageId);
      if (count > 0 && seen.size >= count) finish();
      return rocketmq.ConsumeResult.SUCCESS;
    },
  },
});
try {
  await consumer.startup();
} catch (err) {
  emit('error', failed(err));
  process.exit(1);
}
emit('ready');
await finished;
if (o.graceful) await consumer.shutdown();
else await pause(number(o.linger, 500));
emit('done', { messages: seen.size, deliveries });
process.exit(0);
