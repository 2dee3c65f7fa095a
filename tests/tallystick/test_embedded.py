"""The embedded stack: what it keeps, what it leaves behind, what it says."""

import time

from confluent_kafka import Consumer, Producer, TopicPartition


def sent_and_read(bootstrap: str, topic: str, values: list[bytes], *, offset: int = 0) -> list[tuple[bytes, int]]:
    """Send to partition 0, read partition 0 from the offset; returns values and timestamp types."""
    if values:
        producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
        for value in values:
            producer.produce(topic, value, partition=0)
        assert producer.flush(20) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "fetch.wait.max.ms": 50})
    consumer.assign([TopicPartition(topic, 0, offset)])
    read: list[tuple[bytes, int]] = []
    deadline = time.monotonic() + (20 if values else 10)
    while time.monotonic() < deadline and len(read) < max(len(values), 1):
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            read.append((message.value(), message.timestamp()[0]))
    consumer.close()
    return read


def test_the_embedded_broker_gives_back_what_it_was_sent(embedded_broker):
    embedded_broker.create_topic("round-trip", 2)
    read = sent_and_read(embedded_broker.bootstrap, "round-trip", [b"one", b"two"])
    assert [value for value, _ in read] == [b"one", b"two"]


def test_kafka_4_gives_back_what_it_was_sent(kafka4):
    kafka4.create_topic("round-trip", 2)
    read = sent_and_read(kafka4.bootstrap, "round-trip", [b"one", b"two"])
    assert [value for value, _ in read] == [b"one", b"two"]


def test_scratch(empty_database):
    with empty_database.connect() as connection:
        connection.execute("create table t ()")
