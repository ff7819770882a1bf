package tierfs.driver;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.ReplicaInfo;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** What is asked of the brokers themselves: topics, where their replicas are, log directories, and the format of a new log directory. */
final class Cluster implements AutoCloseable {
    private static final int SECONDS = 60;

    private final Admin admin;

    Cluster(String bootstrap) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("default.api.timeout.ms", 1000 * SECONDS);
        admin = Admin.create(config);
    }

    /**
     * Returns when every partition answers. An idempotent producer that is faster than the broker may have its first batch refused and
     * its second one accepted, and can then never deliver the first.
     */
    void create(String topic, int partitions, int replication, Map<String, String> configs) throws Exception {
        NewTopic fresh = new NewTopic(topic, Optional.of(partitions), Optional.of((short) replication)).configs(configs);
        admin.createTopics(List.of(fresh)).all().get(SECONDS, TimeUnit.SECONDS);
        Map<TopicPartition, OffsetSpec> all = new HashMap<>();
        for (int i = 0; i < partitions; i++) {
            all.put(new TopicPartition(topic, i), OffsetSpec.latest());
        }
        for (long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS); ; Thread.sleep(20)) {
            try {
                admin.listOffsets(all).all().get(SECONDS, TimeUnit.SECONDS);
                return;
            } catch (ExecutionException e) {
                if (!(e.getCause() instanceof UnknownTopicOrPartitionException) || System.nanoTime() > end) {
                    throw e;
                }
            }
        }
    }

    void alter(String topic, Map<String, String> configs) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        List<AlterConfigOp> changes = new ArrayList<>();
        configs.forEach((key, value) -> changes.add(new AlterConfigOp(new ConfigEntry(key, value), AlterConfigOp.OpType.SET)));
        admin.incrementalAlterConfigs(Map.of(resource, changes)).all().get(SECONDS, TimeUnit.SECONDS);
    }

    void delete(String topic) throws Exception {
        admin.deleteTopics(List.of(topic)).all().get(SECONDS, TimeUnit.SECONDS);
    }

    /** Has the broker delete all records below an offset in every partition of a topic. */
    void trim(String topic, int partitions, long offset) throws Exception {
        Map<TopicPartition, RecordsToDelete> below = new HashMap<>();
        for (int i = 0; i < partitions; i++) {
            below.put(new TopicPartition(topic, i), RecordsToDelete.beforeOffset(offset));
        }
        admin.deleteRecords(below).all().get(SECONDS, TimeUnit.SECONDS);
    }

    /** Commits an offset of partition 0 for a consumer group. */
    void commit(String group, String topic, long offset) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> at = Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(offset));
        admin.alterConsumerGroupOffsets(group, at).all().get(SECONDS, TimeUnit.SECONDS);
    }

    /** The number of log directories of all brokers, how many of them are offline, and the bytes of their replicas. */
    String logDirs() throws Exception {
        List<Integer> nodes = admin.describeCluster().nodes().get(SECONDS, TimeUnit.SECONDS).stream().map(Node::id).toList();
        List<LogDirDescription> dirs = admin.describeLogDirs(nodes).allDescriptions().get(SECONDS, TimeUnit.SECONDS).values().stream()
                .flatMap(d -> d.values().stream()).toList();
        long offline = dirs.stream().filter(d -> d.error() != null).count();
        long bytes = dirs.stream().flatMap(d -> d.replicaInfos().values().stream()).mapToLong(ReplicaInfo::size).sum();
        return "dirs=" + dirs.size() + " offline=" + offline + " bytes=" + bytes;
    }

    /** How many partitions there are, how many have fewer replicas in sync than wanted, and how many are on their way to other brokers. */
    String replicas() throws Exception {
        Set<String> topics = admin.listTopics().names().get(SECONDS, TimeUnit.SECONDS);
        Collection<List<TopicPartitionInfo>> all = admin.describeTopics(topics).allTopicNames().get(SECONDS, TimeUnit.SECONDS).values().stream()
                .map(t -> t.partitions()).toList();
        long partitions = all.stream().mapToLong(List::size).sum();
        long under = all.stream().flatMap(List::stream).filter(p -> p.isr().size() < p.replicas().size()).count();
        int moving = admin.listPartitionReassignments().reassignments().get(SECONDS, TimeUnit.SECONDS).size();
        return "partitions=" + partitions + " under=" + under + " moving=" + moving;
    }

    /** Gives every partition of a topic these replicas, the preferred leader first, and returns when all of them are there. */
    void reassign(String topic, List<Integer> brokers) throws Exception {
        Map<TopicPartition, Optional<NewPartitionReassignment>> wanted = new HashMap<>();
        partitions(topic).forEach(p -> wanted.put(new TopicPartition(topic, p.partition()), Optional.of(new NewPartitionReassignment(brokers))));
        admin.alterPartitionReassignments(wanted).all().get(SECONDS, TimeUnit.SECONDS);
        for (long end = deadline(); !admin.listPartitionReassignments(wanted.keySet()).reassignments().get(SECONDS, TimeUnit.SECONDS).isEmpty(); ) {
            pause(end, "the replicas of " + topic + " are still on their way to " + brokers);
        }
    }

    /** Makes a broker, which must have a replica in sync, the leader of all partitions of a topic. The set of replicas stays. */
    void lead(String topic, int broker) throws Exception {
        for (long end = deadline(); ; pause(end, "broker " + broker + " does not lead " + topic)) {
            List<TopicPartitionInfo> others = partitions(topic).stream().filter(p -> p.leader() == null || p.leader().id() != broker).toList();
            if (others.isEmpty()) {
                return;
            }
            Map<TopicPartition, Optional<NewPartitionReassignment>> wanted = new HashMap<>();
            for (TopicPartitionInfo p : others) {
                List<Integer> order = new ArrayList<>(p.replicas().stream().map(Node::id).filter(id -> id != broker).toList());
                order.add(0, broker);
                wanted.put(new TopicPartition(topic, p.partition()), Optional.of(new NewPartitionReassignment(order)));
            }
            admin.alterPartitionReassignments(wanted).all().get(SECONDS, TimeUnit.SECONDS);
            admin.electLeaders(ElectionType.PREFERRED, wanted.keySet()).partitions().get(SECONDS, TimeUnit.SECONDS); // looked at above
        }
    }

    private List<TopicPartitionInfo> partitions(String topic) throws Exception {
        return admin.describeTopics(List.of(topic)).allTopicNames().get(SECONDS, TimeUnit.SECONDS).get(topic).partitions();
    }

    /** For what the brokers do among themselves, such as copying all of a topic. */
    private static long deadline() {
        return System.nanoTime() + TimeUnit.SECONDS.toNanos(5 * SECONDS);
    }

    /** A moment before the next look; fails when the time is over. */
    private static void pause(long end, String problem) throws InterruptedException {
        if (System.nanoTime() > end) {
            throw new IllegalStateException(problem + " after " + 5 * SECONDS + " s");
        }
        Thread.sleep(50);
    }

    static void format(String config, String clusterId) {
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        String[] args = {"format", "--config", config, "--cluster-id", clusterId, "--ignore-formatted"};
        int status = kafka.tools.StorageTool.execute(args, new PrintStream(said, true, StandardCharsets.UTF_8));
        if (status != 0) {
            throw new IllegalStateException("StorageTool: status " + status + ": " + said.toString(StandardCharsets.UTF_8));
        }
    }

    @Override
    public void close() {
        admin.close();
    }
}
