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
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.java.misc.MetadataUtils;

/** Drives the official RocketMQ 5 client for Java; see ../PROTOCOL.md. */
public final class Driver {
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    private static final Gson GSON = new Gson();

    private final ClientServiceProvider provider = ClientServiceProvider.loadService();
    private final Map<String, AutoCloseable> clients = new ConcurrentHashMap<>();
    private final Map<Integer, MessageView> received = new ConcurrentHashMap<>();
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
            case "send" -> answer.addProperty("messageId", send((Producer) clients.get(name), r));
            case "receive" -> answer.add("messages", receive((SimpleConsumer) clients.get(name), r));
            case "ack" -> ((SimpleConsumer) clients.get(name)).ack(received.get(r.get("ref").getAsInt()));
            case "invisible" -> ((SimpleConsumer) clients.get(name)).changeInvisibleDuration(
                received.get(r.get("ref").getAsInt()), Duration.ofMillis(r.get("invisible").getAsLong()));
            case "close" -> clients.remove(name).close();
            default -> throw new IllegalArgumentException("unknown op");
        }
    }

    private static ClientConfiguration configuration(JsonObject r) {
        return ClientConfiguration.newBuilder().setEndpoints(r.get("endpoint").getAsString())
            .enableSsl(r.has("tls") && r.get("tls").getAsBoolean()).build();
    }

    private static Map<String, FilterExpression> subscriptions(JsonObject r) {
        Map<String, FilterExpression> all = new HashMap<>();
        for (Map.Entry<String, JsonElement> e : r.getAsJsonObject("topics").entrySet()) {
            all.put(e.getKey(), new FilterExpression(e.getValue().getAsString()));
        }
        return all;
    }

    private AutoCloseable producer(JsonObject r) throws Exception {
        List<String> topics = new ArrayList<>();
        r.getAsJsonArray("topics").forEach(t -> topics.add(t.getAsString()));
        return provider.newProducerBuilder().setClientConfiguration(configuration(r))
            .setTopics(topics.toArray(new String[0])).setMaxAttempts(r.get("attempts").getAsInt()).build();
    }

    private AutoCloseable simple(JsonObject r) throws Exception {
        return provider.newSimpleConsumerBuilder().setClientConfiguration(configuration(r))
            .setConsumerGroup(r.get("group").getAsString()).setSubscriptionExpressions(subscriptions(r))
            .setAwaitDuration(Duration.ofMillis(r.get("await").getAsLong())).build();
    }

    private AutoCloseable push(String name, JsonObject r) throws Exception {
        int fail = r.has("fail") ? r.get("fail").getAsInt() : 0;
        return provider.newPushConsumerBuilder().setClientConfiguration(configuration(r))
            .setConsumerGroup(r.get("group").getAsString()).setSubscriptionExpressions(subscriptions(r))
            .setConsumptionThreadCount(2).setMessageListener(m -> {
                boolean ok = m.getDeliveryAttempt() > fail;
                JsonObject event = new JsonObject();
                event.addProperty("event", "message");
                event.addProperty("client", name);
                event.addProperty("ok", ok);
                event.add("message", describe(m));
                emit(event);
                return ok ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
            }).build();
    }

    private String send(Producer producer, JsonObject r) throws Exception {
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
        return producer.send(b.build()).getMessageId().toString();
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
