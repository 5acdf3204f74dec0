// Receives with the official SimpleConsumer.
//
//   node simple.mjs --endpoint host:port --topic T --group G [--count 1] [--tag expr]
//     [--batch 16] [--invisible 15000] [--await 3000] [--nack-attempts n] [--no-ack]
//     [--polls n] [--tls] [--timeout ms]
//
// Ends when --count different messages were acknowledged (received, with --no-ack),
// or after --polls receives. A delivery whose attempt is at most --nack-attempts is
// made visible again at once by changeInvisibleDuration. Events: ready; message
// {...; ok}; error; done {messages, deliveries, polls}.
import rocketmq from 'rocketmq-client-nodejs';
import { deadline, describe, emit, failed, logger, number, options, pause } from './common.mjs';

const o = options(['group', 'tag', 'batch', 'invisible', 'await', 'nack-attempts', 'polls'], ['no-ack']);
const count = number(o.count, 1);
const nackAttempts = number(o['nack-attempts'], 0);
const polls = number(o.polls, Infinity);
const seen = new Set();
const state = { messages: 0, deliveries: 0, polls: 0 };
deadline(number(o.timeout, 60000), () => state);
let stop = false;
process.on('SIGTERM', () => { stop = true; });

const consumer = new rocketmq.SimpleConsumer({
  endpoints: o.endpoint, namespace: '', consumerGroup: o.group, sslEnabled: o.tls === true, logger,
  subscriptions: new Map([[o.topic, o.tag ?? '*']]), awaitDuration: number(o.await, 3000), maxRetryAttempts: 1,
});
try {
  await consumer.startup();
} catch (err) {
  emit('error', failed(err));
  process.exit(1);
}
emit('ready');

while (!stop && seen.size < count && state.polls < polls) {
  let messages = [];
  state.polls++;
  try {
    messages = await consumer.receive(number(o.batch, 16), number(o.invisible, 15000));
  } catch (err) {
    emit('error', failed(err));
    await pause(200);
  }
  for (const m of messages) {
    state.deliveries++;
    const ok = !(m.deliveryAttempt <= nackAttempts);
    emit('message', { ...describe(m), ok });
    try {
      if (!ok) await consumer.changeInvisibleDuration(m, 0);
      else {
        if (!o['no-ack']) await consumer.ack(m);
        seen.add(m.messageId);
      }
    } catch (err) {
      emit('error', { messageId: m.messageId, ...failed(err) });
    }
  }
  state.messages = seen.size;
}
await consumer.shutdown();
emit('done', state);
process.exit(0);
