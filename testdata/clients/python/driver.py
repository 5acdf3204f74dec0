"""Drives the official RocketMQ 5 client for Python; see ../PROTOCOL.md."""
import asyncio
import base64
import collections
import hashlib
import importlib.metadata
import itertools
import json
import os
import sys
import threading
import time

from rocketmq import (ClientConfiguration, ConsumeResult, Credentials,
                      FilterExpression, LitePushConsumer, Message,
                      MessageListener, Producer, PushConsumer, SimpleConsumer,
                      TransactionChecker, TransactionResolution)
from rocketmq.grpc_protocol import FilterType
from rocketmq.v5.client.connection import RpcClient

clients = {}
received = {}
transactions = {}
refs = itertools.count(1)
out = threading.Lock()


def emit(value):
    line = json.dumps(value) + "\n"
    with out:
        sys.stdout.write(line)
        sys.stdout.flush()


def configuration(r):
    return ClientConfiguration(r["endpoint"], Credentials(r.get("accessKey", ""), r.get("secretKey", "")))


def subscriptions(r):
    kind = FilterType.SQL if r.get("sql") else FilterType.TAG
    return {topic: FilterExpression(expression, kind) for topic, expression in r["topics"].items()}


def describe(m):
    body = bytes(m.body)
    seen = {
        "messageId": m.message_id, "topic": m.topic, "size": len(body),
        "sha256": hashlib.sha256(body).hexdigest(), "tag": m.tag or "",
        "keys": sorted(m.keys), "properties": dict(m.properties),
        "attempt": m.delivery_attempt, "corrupted": bool(m.corrupted),
        "messageGroup": m.message_group or "", "priority": m.priority, "liteTopic": m.lite_topic or "",
        "deliveryTimestamp": m.delivery_timestamp or 0,
    }
    if len(body) <= 4096:
        seen["body"] = base64.b64encode(body).decode()
    return seen


class Listener(MessageListener):
    """Fails, takes its time and tells as the request says."""

    def __init__(self, r):
        self.client, self.fail, self.hold = r["client"], r.get("fail", 0), r.get("hold", 0)
        self.free = r.get("stall")
        self.begun = itertools.count()
        self.seen = collections.Counter()

    def consume(self, message):
        began = time.time_ns() // 1_000_000
        if self.free is not None and next(self.begun) >= self.free:
            emit({"event": "stall", "client": self.client, "message": describe(message)})
            threading.Event().wait()
        time.sleep(self.hold / 1000)
        self.seen[message.message_id] += 1
        ok = self.seen[message.message_id] > self.fail
        emit({"event": "message", "client": self.client, "ok": ok, "began": began, "ended": time.time_ns() // 1_000_000,
              "message": describe(message)})
        return ConsumeResult.SUCCESS if ok else ConsumeResult.FAILURE


asked = collections.Counter()


class Checker(TransactionChecker):
    """Answers the checks of a message as its property says, whoever is asked."""

    resolutions = {"commit": TransactionResolution.COMMIT, "rollback": TransactionResolution.ROLLBACK,
                   "unknown": TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED}

    def __init__(self, client):
        self.client = client

    def check(self, message):
        answers = message.properties.get("checks", "unknown").split(",")
        answer = answers[min(asked[message.message_id], len(answers) - 1)]
        asked[message.message_id] += 1
        emit({"event": "check", "client": self.client, "answer": answer, "message": describe(message)})
        if answer == "none":
            raise RuntimeError("as told")
        return self.resolutions[answer]


def started(r, client):
    client.startup()
    clients[r["client"]] = client
    return {}


def producer(r):
    # This client has no setting for the number of attempts: it takes the server's.
    checker = Checker(r["client"]) if r.get("checks") else None
    return started(r, Producer(configuration(r), r["topics"], checker, tls_enable=r.get("tls", False)))


def simple(r):
    return started(r, SimpleConsumer(configuration(r), r["group"], subscriptions(r),
                                     await_duration=max(1, r["await"] // 1000), tls_enable=r.get("tls", False)))


def push(r):
    # This client calls into its event loop from another thread without waking
    # it: now and then its first call waits until something else does, it gives up
    # its start after 10 s, and then fails while it cleans up what was not begun.
    for attempts_left in (2, 1, 0):
        try:
            return started(r, PushConsumer(configuration(r), r["group"], Listener(r), subscriptions(r),
                                           consumption_thread_count=2, tls_enable=r.get("tls", False)))
        except AttributeError:
            if not attempts_left:
                raise


def lite(r):
    started(r, LitePushConsumer(configuration(r), r["group"], r["topic"], Listener(r), tls_enable=r.get("tls", False)))
    for topic in r["liteTopics"]:
        clients[r["client"]].subscribe_lite(topic)
    return {}


def subscribe(r):
    if "from" in r:
        raise NotImplementedError("this client cannot say where to go on")
    clients[r["client"]].subscribe_lite(r["liteTopic"])
    return {}


def unsubscribe(r):
    clients[r["client"]].unsubscribe_lite(r["liteTopic"])
    return {}


def lite_topics(r):
    # The set is that of a manager to which the consumer has no door.
    return {"liteTopics": sorted(clients[r["client"]]._LitePushConsumer__subscription_manager.lite_topics)}


def build(r):
    m = Message()
    m.topic = r["topic"]
    m.body = base64.b64decode(r["body"]) if "body" in r else body_of(r["size"])
    if r.get("tag"):
        m.tag = r["tag"]
    for key in r.get("keys") or []:
        m.keys = key
    for key, value in (r.get("properties") or {}).items():
        m.add_property(key, value)
    if r.get("messageGroup"):
        m.message_group = r["messageGroup"]
    if r.get("delay"):  # this client knows whole seconds only
        m.delivery_timestamp = int(time.time()) + r["delay"] // 1000
    if "priority" in r:
        m.priority = r["priority"]
    if r.get("liteTopic"):
        m.lite_topic = r["liteTopic"]
    return m


def send(r):
    receipt = clients[r["client"]].send(build(r))
    return {"messageId": receipt.message_id, "recallHandle": receipt.recall_handle or ""}


def half(r):
    transaction = clients[r["client"]].begin_transaction()
    receipt = clients[r["client"]].send(build(r), transaction)
    tx = next(refs)
    transactions[tx] = transaction
    return {"messageId": receipt.message_id, "tx": tx}


def end(r):
    transaction = transactions[r["tx"]]
    transaction.commit() if r["commit"] else transaction.rollback()
    return {}


def recall(r):
    return {"messageId": clients[r["client"]].recall_message(r["topic"], r["handle"])}


def body_of(size):
    alphabet = b"abcdefghijklmnopqrstuvwxyz"
    return (alphabet * (size // len(alphabet) + 1))[:size]


def receive(r):
    messages = []
    for m in clients[r["client"]].receive(r["max"], r["invisible"] // 1000) or []:
        ref = next(refs)
        received[ref] = m
        messages.append({"ref": ref, **describe(m)})
    return {"messages": messages}


def ack(r):
    clients[r["client"]].ack(received[r["ref"]])
    return {}


def invisible(r):
    clients[r["client"]].change_invisible_duration(received[r["ref"]], r["invisible"] // 1000)
    return {}


def close(r):
    clients.pop(r["client"]).shutdown()
    return {}


OPERATIONS = {f.__name__: f for f in (producer, simple, push, lite, subscribe, unsubscribe, send, half, end, recall, receive, ack,
                                      invisible, close)}
OPERATIONS["liteTopics"] = lite_topics


def serve(r):
    # The client opens its Telemetry stream in this thread when the route has come
    # before it asks what to do then: without an event loop that fails, and a consumer
    # gives up its start after 10 s. An application's main thread has one.
    asyncio.set_event_loop(RpcClient.get_channel_io_loop())
    try:
        answer = OPERATIONS[r["op"]](r)
    except Exception as e:  # whatever the client throws is an answer
        answer = {"error": {"text": str(e), "name": type(e).__name__}}
    emit({"id": r["id"], **answer})


RpcClient()  # the event loop of all clients begins with the first
emit({"event": "ready", "language": "python", "version": importlib.metadata.version("rocketmq-python-client")})
for line in sys.stdin:
    threading.Thread(target=serve, args=(json.loads(line),), daemon=True).start()
os._exit(0)  # the client's threads would keep the process
