import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.OffsetOption;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionChecker;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.client.java.misc.MetadataUtils;

/** Drives the official RocketMQ 5 client for Java; see ../PROTOCOL.md. */
public final class Driver {
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    private static final Gson GSON = new Gson();

    private final ClientServiceProvider provider = ClientServiceProvider.loadService();
    private final Map<String, AutoCloseable> clients = new ConcurrentHashMap<>();
    private final Map<Integer, MessageView> received = new ConcurrentHashMap<>();
    private final Map<Integer, Transaction> transactions = new ConcurrentHashMap<>();
    private final Map<String, Integer> asked = new ConcurrentHashMap<>(); // times of checks, by message id
    private final AtomicInteger refs = new AtomicInteger();

    public static void main(String[] args) throws Exception {
        Driver driver = new Driver();
        JsonObject ready = new JsonObject();
        ready.addProperty("event", "ready");
        ready.addProperty("language", "java");
        ready.addProperty("version", MetadataUtils.getVersion());
        emit(ready);
        ExecutorService pool = Executors.newCachedThreadPool();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonObject request = GSON.fromJson(line, JsonObject.class);
            pool.execute(() -> driver.serve(request));
        }
        Runtime.getRuntime().halt(0); // the client's threads would keep the process
    }

    private static void emit(JsonObject value) {
        synchronized (OUT) {
            OUT.println(GSON.toJson(value));
            OUT.flush();
        }
    }

    private void serve(JsonObject r) {
        JsonObject answer = new JsonObject();
        try {
            carryOut(r, answer);
        } catch (Throwable e) { // whatever the client throws is an answer
            JsonObject error = new JsonObject();
            error.addProperty("text", String.valueOf(e.getMessage()));
            error.addProperty("name", e.getClass().getSimpleName());
            answer = new JsonObject();
            answer.add("error", error);
        }
        answer.add("id", r.get("id"));
        emit(answer);
    }

    private void carryOut(JsonObject r, JsonObject answer) throws Exception {
        String name = r.get("client").getAsString();
        switch (r.get("op").getAsString()) {
            case "producer" -> clients.put(name, producer(r));
            case "simple" -> clients.put(name, simple(r));
            case "push" -> clients.put(name, push(name, r));
            case "lite" -> clients.put(name, lite(name, r));
            case "subscribe" -> subscribe((LitePushConsumer) clients.get(name), r);
            case "unsubscribe" -> ((LitePushConsumer) clients.get(name)).unsubscribeLite(r.get("liteTopic").getAsString());
            case "liteTopics" -> answer.add("liteTopics", GSON.toJsonTree(
                ((LitePushConsumer) clients.get(name)).getLiteTopicSet().stream().sorted().toArray()));
            case "send" -> send((Producer) clients.get(name), r, answer);
            case "half" -> half((Producer) clients.get(name), r, answer);
            case "end" -> end(transactions.get(r.get("tx").getAsInt()), r.get("commit").getAsBoolean());
            case "recall" -> answer.addProperty("messageId", ((Producer) clients.get(name))
                .recallMessage(r.get("topic").getAsString(), r.get("handle").getAsString()).getMessageId().toString());
            case "receive" -> answer.add("messages", receive((SimpleConsumer) clients.get(name), r));
            case "ack" -> ((SimpleConsumer) clients.get(name)).ack(received.get(r.get("ref").getAsInt()));
            case "invisible" -> ((SimpleConsumer) clients.get(name)).changeInvisibleDuration(
                received.get(r.get("ref").getAsInt()), Duration.ofMillis(r.get("invisible").getAsLong()));
            case "close" -> clients.remove(name).close();
            default -> throw new IllegalArgumentException("unknown op");
        }
    }

    private static ClientConfiguration configuration(JsonObject r) {
        ClientConfigurationBuilder b = ClientConfiguration.newBuilder().setEndpoints(r.get("endpoint").getAsString())
            .enableSsl(r.has("tls") && r.get("tls").getAsBoolean());
        if (r.has("accessKey")) {
            b.setCredentialProvider(new StaticSessionCredentialsProvider(r.get("accessKey").getAsString(), r.get("secretKey").getAsString()));
        }
        return b.build();
    }

    private static Map<String, FilterExpression> subscriptions(JsonObject r) {
        Map<String, FilterExpression> all = new HashMap<>();
        FilterExpressionType kind = r.has("sql") && r.get("sql").getAsBoolean() ? FilterExpressionType.SQL92 : FilterExpressionType.TAG;
        for (Map.Entry<String, JsonElement> e : r.getAsJsonObject("topics").entrySet()) {
            all.put(e.getKey(), new FilterExpression(e.getValue().getAsString(), kind));
        }
        return all;
    }

    private AutoCloseable producer(JsonObject r) throws Exception {
        List<String> topics = new ArrayList<>();
        r.getAsJsonArray("topics").forEach(t -> topics.add(t.getAsString()));
        ProducerBuilder b = provider.newProducerBuilder().setClientConfiguration(configuration(r))
            .setTopics(topics.toArray(new String[0])).setMaxAttempts(r.get("attempts").getAsInt());
        if (r.has("checks") && r.get("checks").getAsBoolean()) {
            b.setTransactionChecker(checker(r));
        }
        return b.build();
    }

    /** Answers the checks of a message as its property says, whoever is asked. */
    private TransactionChecker checker(JsonObject r) {
        return m -> {
            String[] answers = m.getProperties().getOrDefault("checks", "unknown").split(",");
            int n = asked.merge(m.getMessageId().toString(), 1, Integer::sum);
            String answer = answers[Math.min(n, answers.length) - 1];
            JsonObject event = new JsonObject();
            event.addProperty("event", "check");
            event.addProperty("client", r.get("client").getAsString());
            event.addProperty("answer", answer);
            event.add("message", describe(m));
            emit(event);
            return switch (answer) {
                case "commit" -> TransactionResolution.COMMIT;
                case "rollback" -> TransactionResolution.ROLLBACK;
                case "unknown" -> TransactionResolution.UNKNOWN;
                default -> throw new IllegalStateException("as told");
            };
        };
    }

    private AutoCloseable simple(JsonObject r) throws Exception {
        return provider.newSimpleConsumerBuilder().setClientConfiguration(configuration(r))
            .setConsumerGroup(r.get("group").getAsString()).setSubscriptionExpressions(subscriptions(r))
            .setAwaitDuration(Duration.ofMillis(r.get("await").getAsLong())).build();
    }

    private AutoCloseable push(String name, JsonObject r) throws Exception {
        return provider.newPushConsumerBuilder().setClientConfiguration(configuration(r))
            .setConsumerGroup(r.get("group").getAsString()).setSubscriptionExpressions(subscriptions(r))
            .setConsumptionThreadCount(2).setMessageListener(listener(name, r)).build();
    }

    private AutoCloseable lite(String name, JsonObject r) throws Exception {
        LitePushConsumer consumer = provider.newLitePushConsumerBuilder().setClientConfiguration(configuration(r))
            .setConsumerGroup(r.get("group").getAsString()).bindTopic(r.get("topic").getAsString())
            .setConsumptionThreadCount(2).setMessageListener(listener(name, r)).build();
        for (JsonElement topic : r.getAsJsonArray("liteTopics")) {
            consumer.subscribeLite(topic.getAsString());
        }
        return consumer;
    }

    private static void subscribe(LitePushConsumer consumer, JsonObject r) throws Exception {
        String topic = r.get("liteTopic").getAsString();
        if (!r.has("from")) {
            consumer.subscribeLite(topic);
            return;
        }
        long n = r.has("n") ? r.get("n").getAsLong() : 0;
        consumer.subscribeLite(topic, switch (r.get("from").getAsString()) {
            case "last" -> OffsetOption.LAST_OFFSET;
            case "min" -> OffsetOption.MIN_OFFSET;
            case "max" -> OffsetOption.MAX_OFFSET;
            case "offset" -> OffsetOption.ofOffset(n);
            case "tail" -> OffsetOption.ofTailN(n);
            default -> OffsetOption.ofTimestamp(n);
        });
    }

    /** Fails, takes its time and tells as the request says. */
    private static MessageListener listener(String name, JsonObject r) {
        int fail = r.has("fail") ? r.get("fail").getAsInt() : 0;
        long hold = r.has("hold") ? r.get("hold").getAsLong() : 0;
        int free = r.has("stall") ? r.get("stall").getAsInt() : Integer.MAX_VALUE;
        AtomicInteger begun = new AtomicInteger();
        Map<String, Integer> seen = new ConcurrentHashMap<>();
        return m -> {
            long began = System.currentTimeMillis();
            try {
                if (begun.getAndIncrement() >= free) {
                    JsonObject stall = new JsonObject();
                    stall.addProperty("event", "stall");
                    stall.addProperty("client", name);
                    stall.add("message", describe(m));
                    emit(stall);
                    new CountDownLatch(1).await();
                }
                Thread.sleep(hold);
            } catch (InterruptedException e) {
                return ConsumeResult.FAILURE;
            }
            boolean ok = seen.merge(m.getMessageId().toString(), 1, Integer::sum) > fail;
            JsonObject event = new JsonObject();
            event.addProperty("event", "message");
            event.addProperty("client", name);
            event.addProperty("ok", ok);
            event.addProperty("began", began);
            event.addProperty("ended", System.currentTimeMillis());
            event.add("message", describe(m));
            emit(event);
            return ok ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
        };
    }

    private void send(Producer producer, JsonObject r, JsonObject answer) throws Exception {
        SendReceipt receipt = producer.send(build(r));
        answer.addProperty("messageId", receipt.getMessageId().toString());
        answer.addProperty("recallHandle", receipt.getRecallHandle());
    }

    private void half(Producer producer, JsonObject r, JsonObject answer) throws Exception {
        Transaction transaction = producer.beginTransaction();
        answer.addProperty("messageId", producer.send(build(r), transaction).getMessageId().toString());
        int tx = refs.incrementAndGet();
        transactions.put(tx, transaction);
        answer.addProperty("tx", tx);
    }

    private static void end(Transaction transaction, boolean commit) throws Exception {
        if (commit) {
            transaction.commit();
        } else {
            transaction.rollback();
        }
    }

    private Message build(JsonObject r) {
        MessageBuilder b = provider.newMessageBuilder().setTopic(r.get("topic").getAsString()).setBody(body(r));
        if (r.has("tag")) {
            b.setTag(r.get("tag").getAsString());
        }
        if (r.has("keys")) {
            List<String> keys = new ArrayList<>();
            r.getAsJsonArray("keys").forEach(k -> keys.add(k.getAsString()));
            b.setKeys(keys.toArray(new String[0]));
        }
        if (r.has("properties")) {
            r.getAsJsonObject("properties").entrySet().forEach(e -> b.addProperty(e.getKey(), e.getValue().getAsString()));
        }
        if (r.has("messageGroup")) {
            b.setMessageGroup(r.get("messageGroup").getAsString());
        }
        if (r.has("delay")) {
            b.setDeliveryTimestamp(System.currentTimeMillis() + r.get("delay").getAsLong());
        }
        if (r.has("priority")) {
            b.setPriority(r.get("priority").getAsInt());
        }
        if (r.has("liteTopic")) {
            b.setLiteTopic(r.get("liteTopic").getAsString());
        }
        return b.build();
    }

    private static byte[] body(JsonObject r) {
        if (r.has("body")) {
            return Base64.getDecoder().decode(r.get("body").getAsString());
        }
        byte[] body = new byte[r.get("size").getAsInt()];
        for (int i = 0; i < body.length; i++) {
            body[i] = (byte) ('a' + i % 26);
        }
        return body;
    }

    private JsonArray receive(SimpleConsumer consumer, JsonObject r) throws Exception {
        JsonArray all = new JsonArray();
        for (MessageView m : consumer.receive(r.get("max").getAsInt(), Duration.ofMillis(r.get("invisible").getAsLong()))) {
            int ref = refs.incrementAndGet();
            received.put(ref, m);
            JsonObject seen = describe(m);
            seen.addProperty("ref", ref);
            all.add(seen);
        }
        return all;
    }

    private static JsonObject describe(MessageView m) {
        ByteBuffer buffer = m.getBody();
        byte[] body = new byte[buffer.remaining()];
        buffer.get(body);
        JsonObject seen = new JsonObject();
        seen.addProperty("messageId", m.getMessageId().toString());
        seen.addProperty("topic", m.getTopic());
        seen.addProperty("size", body.length);
        seen.addProperty("sha256", sha256(body));
        seen.addProperty("tag", m.getTag().orElse(""));
        seen.add("keys", GSON.toJsonTree(m.getKeys().stream().sorted().toArray()));
        seen.add("properties", GSON.toJsonTree(m.getProperties()));
        seen.addProperty("attempt", m.getDeliveryAttempt());
        seen.addProperty("messageGroup", m.getMessageGroup().orElse(""));
        seen.addProperty("deliveryTimestamp", m.getDeliveryTimestamp().orElse(0L));
        m.getPriority().ifPresent(p -> seen.addProperty("priority", p));
        seen.addProperty("liteTopic", m.getLiteTopic().orElse(""));
        if (body.length <= 4096) {
            seen.addProperty("body", Base64.getEncoder().encodeToString(body));
        }
        return seen;
    }

    private static String sha256(byte[] body) {
        try {
            StringBuilder hex = new StringBuilder();
            for (byte b : MessageDigest.getInstance("SHA-256").digest(body)) {
                hex.append(String.format("%02x", b));
            }
            return hex.toString();
        } catch (java.security.NoSuchAlgorithmException e) {
            throw new IllegalStateException(e);
        }
    }
}
