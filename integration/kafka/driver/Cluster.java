package tierfs.driver;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ReplicaInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** What is asked of the broker itself: topics, log directories, and the format of a new log directory. */
final class Cluster implements AutoCloseable {
    private static final int NODE = 1;
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
    void create(String topic, int partitions, Map<String, String> configs) throws Exception {
        NewTopic fresh = new NewTopic(topic, Optional.of(partitions), Optional.of((short) 1)).configs(configs);
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

    /** The number of log directories, how many of them are offline, and the bytes of their replicas. */
    String logDirs() throws Exception {
        Map<String, LogDirDescription> dirs = admin.describeLogDirs(List.of(NODE)).allDescriptions().get(SECONDS, TimeUnit.SECONDS).get(NODE);
        long offline = dirs.values().stream().filter(d -> d.error() != null).count();
        long bytes = dirs.values().stream().flatMap(d -> d.replicaInfos().values().stream()).mapToLong(ReplicaInfo::size).sum();
        return "dirs=" + dirs.size() + " offline=" + offline + " bytes=" + bytes;
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
