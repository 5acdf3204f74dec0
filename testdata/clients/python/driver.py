"""Drives the official RocketMQ 5 client for Python; see ../PROTOCOL.md."""
import base64
import hashlib
import importlib.metadata
import itertools
import json
import os
import sys
import threading
import time

from rocketmq import (ClientConfiguration, ConsumeResult, Credentials,
                      FilterExpression, Message, MessageListener, Producer,
                      PushConsumer, SimpleConsumer)

clients = {}
received = {}
refs = itertools.count(1)
out = threading.Lock()


def emit(value):
    line = json.dumps(value) + "\n"
    with out:
        sys.stdout.write(line)
        sys.stdout.flush()


def configuration(r):
    return ClientConfiguration(r["endpoint"], Credentials())


def subscriptions(r):
    return {topic: FilterExpression(tags) for topic, tags in r["topics"].items()}


def describe(m):
    body = bytes(m.body)
    seen = {
        "messageId": m.message_id, "topic": m.topic, "size": len(body),
        "sha256": hashlib.sha256(body).hexdigest(), "tag": m.tag or "",
        "keys": sorted(m.keys), "properties": dict(m.properties),
        "attempt": m.delivery_attempt, "corrupted": bool(m.corrupted),
    }
    if len(body) <= 4096:
        seen["body"] = base64.b64encode(body).decode()
    return seen


class Listener(MessageListener):
    def __init__(self, client, fail):
        self.client, self.fail = client, fail

    def consume(self, message):
        ok = message.delivery_attempt > self.fail
        emit({"event": "message", "client": self.client, "ok": ok, "message": describe(message)})
        return ConsumeResult.SUCCESS if ok else ConsumeResult.FAILURE


def started(r, client):
    client.startup()
    clients[r["client"]] = client
    return {}


def producer(r):
    # This client has no setting for the number of attempts: it takes the server's.
    return started(r, Producer(configuration(r), r["topics"], tls_enable=r.get("tls", False)))


def simple(r):
    return started(r, SimpleConsumer(configuration(r), r["group"], subscriptions(r),
                                     await_duration=max(1, r["await"] // 1000), tls_enable=r.get("tls", False)))


def push(r):
    listener = Listener(r["client"], r.get("fail", 0))
    # This client calls into its event loop from another thread without waking
    # it: now and then its first call waits until something else does, it gives up
    # its start after 10 s, and then fails while it cleans up what was not begun.
    for attempts_left in (2, 1, 0):
        try:
            return started(r, PushConsumer(configuration(r), r["group"], listener, subscriptions(r),
                                           consumption_thread_count=2, tls_enable=r.get("tls", False)))
        except AttributeError:
            if not attempts_left:
                raise


def send(r):
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
    if r.get("delay"):
        m.delivery_timestamp = int(time.time()) + r["delay"] // 1000
    return {"messageId": clients[r["client"]].send(m).message_id}


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


OPERATIONS = {f.__name__: f for f in (producer, simple, push, send, receive, ack, invisible, close)}


def serve(r):
    try:
        answer = OPERATIONS[r["op"]](r)
    except Exception as e:  # whatever the client throws is an answer
        answer = {"error": {"text": str(e), "name": type(e).__name__}}
    emit({"id": r["id"], **answer})


emit({"event": "ready", "language": "python", "version": importlib.metadata.version("rocketmq-python-client")})
for line in sys.stdin:
    threading.Thread(target=serve, args=(json.loads(line),), daemon=True).start()
os._exit(0)  # the client's threads would keep the process
