package tierfs.driver;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Reads of one topic, each record compared with the ledger. */
final class Consuming {
    private final String topic;
    private final Ledger ledger;
    private final Properties config = new Properties();
    private final boolean readCommitted;
    private final boolean compare;
    private final boolean fromStart;
    private final long stallLimit; // ms without a record before the read has failed
    private long records;
    private long bytes;
    private long longestWait; // ms

    Consuming(String bootstrap, String topic, Ledger ledger, Args args) {
        this.topic = topic;
        this.ledger = ledger;
        String isolation = args.text("isolation", "read_uncommitted");
        readCommitted = isolation.equals("read_committed");
        compare = args.text("compare", "yes").equals("yes");
        fromStart = args.text("from", "zero").equals("start");
        stallLimit = args.number("stall", 120_000);
        config.put("bootstrap.servers", bootstrap);
        config.put("isolation.level", isolation);
        config.put("enable.auto.commit", false);
        config.put("auto.offset.reset", "none"); // an offset that the broker no longer has is an error, never a silent jump
        config.put("check.crcs", true);
        config.put("default.api.timeout.ms", (int) Math.max(60_000, stallLimit));
    }

    /** Reads every partition from offset 0, or from where its log starts by now, to the end that it had at the start. */
    String all() {
        long start = System.nanoTime();
        try (KafkaConsumer<byte[], byte[]> consumer = open()) {
            List<TopicPartition> partitions = partitions();
            consumer.assign(partitions);
            Map<TopicPartition, Long> ends = ends(consumer, partitions);
            Map<TopicPartition, Long> starts = new HashMap<>();
            partitions.forEach(p -> starts.put(p, 0L));
            if (fromStart) {
                starts.putAll(consumer.beginningOffsets(partitions));
            }
            starts.forEach(consumer::seek);
            Map<Integer, Progress> progress = new HashMap<>();
            partitions.forEach(p -> progress.put(p.partition(), new Progress()));
            List<TopicPartition> left = new ArrayList<>(partitions);
            left.removeIf(p -> ends.get(p) <= starts.get(p));
            while (!left.isEmpty()) {
                for (ConsumerRecord<byte[], byte[]> r : poll(consumer)) {
                    if (r.offset() < ends.get(new TopicPartition(r.topic(), r.partition()))) {
                        take(r, progress.get(r.partition()));
                    }
                }
                if (left.removeIf(p -> consumer.position(p) >= ends.get(p))) {
                    consumer.assign(left);
                }
            }
            if (compare) {
                ends.forEach((p, end) -> complete(p.partition(), starts.get(p), end, progress.get(p.partition()).seen));
            }
        }
        return result(start);
    }

    /**
     * Seeks to a number of random committed records, by offset or by timestamp, and compares what the first poll returns. By timestamp
     * only where nothing was transactional: the markers of commits and aborts have timestamps of their own.
     */
    String some(long count, long seed, boolean byTimestamp) {
        long start = System.nanoTime();
        Random random = new Random(seed);
        try (KafkaConsumer<byte[], byte[]> consumer = open()) {
            for (long i = 0; i < count; i++) {
                int index = random.nextInt(ledger.partitions());
                Ledger.Partition partition = ledger.partition(index);
                long sequence = partition.sent() == 0 ? -1 : partition.committedFrom((long) (random.nextDouble() * partition.sent()));
                if (sequence < 0) {
                    throw new IllegalStateException("partition " + index + " has no committed record");
                }
                TopicPartition p = new TopicPartition(topic, index);
                long offset = partition.offset(sequence);
                if (byTimestamp) {
                    OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(p, ledger.timestamp(sequence))).get(p);
                    if (found == null || found.offset() != offset) {
                        throw new Ledger.Mismatch(at(index, offset) + ": its timestamp " + ledger.timestamp(sequence) + " leads to " + found);
                    }
                }
                consumer.assign(List.of(p));
                consumer.seek(p, offset);
                one(consumer, offset);
            }
        }
        return result(start);
    }

    private void one(KafkaConsumer<byte[], byte[]> consumer, long offset) {
        Progress progress = new Progress();
        long first = -1;
        while (first < 0) {
            for (ConsumerRecord<byte[], byte[]> r : poll(consumer)) {
                first = first < 0 ? r.offset() : first;
                take(r, progress);
            }
        }
        if (first != offset) {
            throw new Ledger.Mismatch("asked for offset " + offset + ", got " + first);
        }
    }

    private KafkaConsumer<byte[], byte[]> open() {
        return new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private List<TopicPartition> partitions() {
        List<TopicPartition> all = new ArrayList<>();
        for (int i = 0; i < ledger.partitions(); i++) {
            all.add(new TopicPartition(topic, i));
        }
        return all;
    }

    /** Polls until there is progress: records, or a position that moves over aborted records and control batches. */
    private ConsumerRecords<byte[], byte[]> poll(KafkaConsumer<byte[], byte[]> consumer) {
        long start = System.nanoTime();
        long before = positions(consumer);
        while (true) {
            ConsumerRecords<byte[], byte[]> found = consumer.poll(Duration.ofMillis(1000));
            long waited = (System.nanoTime() - start) / 1_000_000;
            longestWait = Math.max(longestWait, waited);
            if (!found.isEmpty() || positions(consumer) != before) {
                return found;
            }
            if (waited > stallLimit) {
                throw new IllegalStateException("no record for " + waited + " ms at positions " + where(consumer));
            }
        }
    }

    private long positions(KafkaConsumer<byte[], byte[]> consumer) {
        return consumer.assignment().stream().mapToLong(consumer::position).sum();
    }

    private String where(KafkaConsumer<byte[], byte[]> consumer) {
        StringBuilder all = new StringBuilder();
        consumer.assignment().forEach(p -> all.append(p).append('@').append(consumer.position(p)).append(' '));
        return all.toString().trim();
    }

    private static final class Progress {
        final BitSet seen = new BitSet();
        long lastSequence = -1;
        long lastOffset = -1;
    }

    private void take(ConsumerRecord<byte[], byte[]> r, Progress progress) {
        records++;
        bytes += r.value().length;
        if (r.offset() <= progress.lastOffset) {
            throw new Ledger.Mismatch(at(r.partition(), r.offset()) + " after offset " + progress.lastOffset);
        }
        progress.lastOffset = r.offset();
        if (!compare) {
            return;
        }
        long sequence = Ledger.sequence(r.key());
        String where = at(r.partition(), r.offset()) + " sequence " + sequence;
        Ledger.Partition partition = ledger.partition(r.partition());
        if (sequence <= progress.lastSequence || sequence >= partition.sent()) {
            throw new Ledger.Mismatch(where + " after " + progress.lastSequence + " of " + partition.sent() + " sent");
        }
        progress.lastSequence = sequence;
        progress.seen.set((int) sequence);
        byte[] expected = ledger.payload(r.partition(), sequence);
        int different = Arrays.mismatch(expected, r.value());
        if (different >= 0) {
            throw new Ledger.Mismatch(where + ": " + r.value().length + " bytes, expected " + expected.length + ", different from byte " + different);
        }
        if (r.timestamp() != ledger.timestamp(sequence)) {
            throw new Ledger.Mismatch(where + ": timestamp " + r.timestamp());
        }
        long offset = partition.offset(sequence);
        if (offset >= 0 && offset != r.offset()) {
            throw new Ledger.Mismatch(where + " was acknowledged at offset " + offset);
        }
        if (readCommitted && partition.fate(sequence) == Ledger.Fate.ABORTED) {
            throw new Ledger.Mismatch(where + " was aborted");
        }
    }

    private void complete(int index, long start, long end, BitSet seen) {
        Ledger.Partition partition = ledger.partition(index);
        long sequence = partition.missing(seen, start, end, readCommitted);
        if (sequence >= 0) {
            throw new Ledger.Mismatch(at(index, partition.offset(sequence)) + " sequence " + sequence + " was acknowledged and is missing");
        }
    }

    /** The partitions' ends, all acknowledged records below them. A commit is answered before its markers are in the log, so that may take a moment. */
    private Map<TopicPartition, Long> ends(KafkaConsumer<byte[], byte[]> consumer, List<TopicPartition> partitions) {
        Map<TopicPartition, Long> last = new HashMap<>();
        partitions.forEach(p -> last.put(p, ledger.partition(p.partition()).lastSettled(readCommitted)));
        long start = System.nanoTime();
        while (true) {
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            TopicPartition low = null;
            for (TopicPartition p : partitions) {
                low = ends.get(p) <= last.get(p) ? p : low;
            }
            if (low == null) {
                return ends;
            }
            if (!readCommitted || System.nanoTime() - start > 30_000_000_000L) {
                throw new Ledger.Mismatch(low + " ends at " + ends.get(low) + ", but offset " + last.get(low) + " was acknowledged");
            }
        }
    }

    private String at(int partition, long offset) {
        return topic + "-" + partition + "@" + offset;
    }

    private String result(long start) {
        long millis = (System.nanoTime() - start) / 1_000_000;
        return "records=" + records + " bytes=" + bytes + " ms=" + millis + " longest_wait_ms=" + longestWait;
    }
}
