package tierfs.driver;

import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** One run of a producer: a number of records, or until it is told to stop. */
final class Producing {
    private record Sent(Ledger.Partition partition, long sequence) {}

    private final Ledger ledger;
    private final Properties config = new Properties();
    private final boolean transactional;
    private final long records;
    private final int transactionSize;
    private final int abortEvery;
    private final double rate;
    private final AtomicLong bytes = new AtomicLong();
    private final AtomicReference<String> firstFailure = new AtomicReference<>("none");
    private volatile boolean stopped;
    private long acked; // guarded by this
    private long failed; // guarded by this
    private boolean finished; // guarded by this

    Producing(String bootstrap, Ledger ledger, Args args) {
        this.ledger = ledger;
        String mode = args.text("mode", "idempotent");
        transactional = mode.equals("txn");
        records = args.number("records", Long.MAX_VALUE);
        transactionSize = (int) args.number("txn", 500);
        abortEvery = (int) args.number("abort", 0);
        rate = args.number("rate", 0);
        long timeout = args.number("timeout", 120_000);
        config.put("bootstrap.servers", bootstrap);
        config.put("acks", "all");
        config.put("compression.type", args.text("compression", "none"));
        config.put("batch.size", (int) args.number("batch", 16384));
        config.put("linger.ms", args.number("linger", 5));
        config.put("buffer.memory", args.number("buffer", 32 << 20));
        config.put("delivery.timeout.ms", (int) timeout);
        config.put("request.timeout.ms", (int) Math.min(30_000, timeout - 1_000));
        config.put("max.block.ms", timeout);
        switch (mode) {
            case "txn" -> {
                config.put("enable.idempotence", true);
                config.put("transactional.id", ledger.topic + "-" + System.nanoTime());
            }
            case "idempotent" -> config.put("enable.idempotence", true);
            case "plain" -> { // no retries: a record that failed is never seen twice and never out of order
                config.put("enable.idempotence", false);
                config.put("retries", 0);
                config.put("max.in.flight.requests.per.connection", 1);
            }
            default -> throw new IllegalArgumentException("mode=" + mode);
        }
    }

    String run() {
        long start = System.nanoTime();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            if (transactional) {
                transactions(producer);
            } else {
                for (long n = 0; n < records && !stopped; n++) {
                    send(producer, (int) (n % ledger.partitions()));
                    pace(start, n);
                }
            }
            producer.flush();
            long millis = (System.nanoTime() - start) / 1_000_000;
            synchronized (this) {
                return "acked=" + acked + " failed=" + failed + " bytes=" + bytes + " ms=" + millis + " failure=" + firstFailure.get();
            }
        } finally {
            synchronized (this) {
                finished = true;
                notifyAll();
            }
        }
    }

    void stop() {
        stopped = true;
    }

    /** Waits until so many records are acknowledged in this run; fails when the run ends before. */
    synchronized String await(long count) throws InterruptedException {
        while (acked < count && !finished) {
            wait();
        }
        if (acked < count) {
            throw new IllegalStateException("the producer ended after " + acked + " acknowledged records, first failure: " + firstFailure.get());
        }
        return "acked=" + acked;
    }

    /** Every abortEvery-th transaction is aborted (0: none); the last one is always committed. */
    private void transactions(KafkaProducer<byte[], byte[]> producer) {
        producer.initTransactions();
        long start = System.nanoTime();
        long n = 0;
        for (int t = 1; n < records && !stopped; t++) {
            List<Sent> sent = new ArrayList<>(transactionSize);
            producer.beginTransaction();
            for (int i = 0; i < transactionSize && n < records; i++, n++) {
                sent.add(send(producer, (int) (n % ledger.partitions())));
                pace(start, n);
            }
            producer.flush();
            boolean abort = abortEvery > 0 && t % abortEvery == 0 && n < records;
            if (abort) {
                producer.abortTransaction();
            } else {
                producer.commitTransaction();
            }
            Ledger.Fate fate = abort ? Ledger.Fate.ABORTED : Ledger.Fate.COMMITTED;
            sent.forEach(s -> s.partition.settle(s.sequence, fate));
        }
    }

    private Sent send(KafkaProducer<byte[], byte[]> producer, int index) {
        Ledger.Partition partition = ledger.partition(index);
        long sequence = partition.take();
        byte[] payload = ledger.payload(index, sequence);
        producer.send(new ProducerRecord<>(ledger.topic, index, ledger.timestamp(sequence), Ledger.key(sequence), payload), (metadata, e) -> {
            if (e == null) {
                partition.acknowledged(sequence, metadata.offset());
                if (!transactional) {
                    partition.settle(sequence, Ledger.Fate.COMMITTED);
                }
                bytes.addAndGet(payload.length);
            } else {
                firstFailure.compareAndSet("none", e.getClass().getSimpleName());
            }
            count(e == null);
        });
        return new Sent(partition, sequence);
    }

    private synchronized void count(boolean ok) {
        if (ok) {
            acked++;
        } else {
            failed++;
        }
        notifyAll();
    }

    private void pace(long start, long n) {
        if (rate > 0) {
            long due = start + (long) (n / rate * 1e9);
            for (long now = System.nanoTime(); now < due && !stopped; now = System.nanoTime()) {
                LockSupport.parkNanos(Math.min(due - now, 50_000_000));
            }
        }
    }
}
