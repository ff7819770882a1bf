package tierfs.driver;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.BitSet;
import java.util.zip.CRC32;

/**
 * What was produced to one topic. Every record is a function of topic seed, partition and sequence number, so any record that comes
 * back can be compared byte for byte; the ledger only remembers at which offset the broker acknowledged it.
 */
final class Ledger {
    private static final VarHandle LONGS = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
    private static final int KEY_SIZE = 8;

    /** What is known of a sent record. */
    enum Fate { UNKNOWN, COMMITTED, ABORTED }

    final String topic;
    final int minSize;
    final int maxSize;
    final boolean text;
    final long firstTimestamp;
    private final long seed;
    private final Partition[] partitions;

    /** Sizes in bytes; text payloads compress to about half. Record n of a partition has the timestamp firstTimestamp + n ms. */
    Ledger(String topic, int partitions, int minSize, int maxSize, boolean text, long firstTimestamp, long seed) {
        this.topic = topic;
        this.minSize = minSize;
        this.maxSize = maxSize;
        this.text = text;
        this.firstTimestamp = firstTimestamp;
        CRC32 crc = new CRC32();
        crc.update(topic.getBytes(StandardCharsets.UTF_8));
        this.seed = mix(seed ^ (crc.getValue() << 20));
        this.partitions = new Partition[partitions];
        for (int i = 0; i < partitions; i++) {
            this.partitions[i] = new Partition();
        }
    }

    int partitions() {
        return partitions.length;
    }

    Partition partition(int index) {
        return partitions[index];
    }

    long timestamp(long sequence) {
        return firstTimestamp + sequence;
    }

    static byte[] key(long sequence) {
        byte[] key = new byte[KEY_SIZE];
        LONGS.set(key, 0, sequence);
        return key;
    }

    static long sequence(byte[] key) {
        if (key == null || key.length != KEY_SIZE) {
            throw new Mismatch("a key that this driver never wrote");
        }
        return (long) LONGS.get(key, 0);
    }

    byte[] payload(int partition, long sequence) {
        long state = mix(seed ^ ((long) partition << 48) ^ sequence);
        int size = minSize + (int) Long.remainderUnsigned(state, maxSize - minSize + 1);
        byte[] padded = new byte[(size + 63) & ~63];
        for (int at = 0; at < padded.length; at += 8) {
            if (text && (at & 63) >= 32) {
                LONGS.set(padded, at, (long) LONGS.get(padded, at - 32));
                continue;
            }
            state += 0x9E3779B97F4A7C15L;
            LONGS.set(padded, at, mix(state));
        }
        return Arrays.copyOf(padded, size);
    }

    private static long mix(long z) {
        z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
        z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
        return z ^ (z >>> 31);
    }

    /** A record that differs from what was produced. */
    static final class Mismatch extends RuntimeException {
        Mismatch(String message) {
            super(message);
        }
    }

    /** The sequence numbers of one partition. Safe for use by several threads. */
    static final class Partition {
        private long[] offsets = new long[1024]; // -1: not acknowledged
        private long next;
        private final BitSet committed = new BitSet();
        private final BitSet aborted = new BitSet();

        synchronized long take() {
            if (next == offsets.length) {
                offsets = Arrays.copyOf(offsets, 2 * offsets.length);
            }
            offsets[(int) next] = -1;
            return next++;
        }

        synchronized void acknowledged(long sequence, long offset) {
            offsets[(int) sequence] = offset;
        }

        synchronized void settle(long sequence, Fate fate) {
            if (fate == Fate.COMMITTED) {
                committed.set((int) sequence);
            } else if (fate == Fate.ABORTED) {
                aborted.set((int) sequence);
            }
        }

        synchronized long sent() {
            return next;
        }

        /** The acknowledged offset, or -1. */
        synchronized long offset(long sequence) {
            return offsets[(int) sequence];
        }

        synchronized Fate fate(long sequence) {
            return committed.get((int) sequence) ? Fate.COMMITTED : aborted.get((int) sequence) ? Fate.ABORTED : Fate.UNKNOWN;
        }

        /** The first settled record of the offsets from start to end (exclusive) that a reader should have seen and did not, or -1. */
        synchronized long missing(BitSet seen, long start, long end, boolean readCommitted) {
            for (int i = 0; i < next; i++) {
                boolean expected = committed.get(i) || (!readCommitted && aborted.get(i));
                if (expected && offsets[i] >= start && offsets[i] < end && !seen.get(i)) {
                    return i;
                }
            }
            return -1;
        }

        /** The highest acknowledged offset of the settled records that a reader sees, or -1. */
        synchronized long lastSettled(boolean readCommitted) {
            int last = readCommitted ? committed.length() : Math.max(committed.length(), aborted.length());
            return last == 0 ? -1 : offsets[last - 1];
        }

        /** A committed record at or after the sequence number (round to the beginning), or -1 when there is none. */
        synchronized long committedFrom(long sequence) {
            int at = committed.nextSetBit((int) sequence);
            return at >= 0 ? at : committed.nextSetBit(0);
        }
    }
}
