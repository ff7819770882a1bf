package tierfs.driver;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * A Kafka client that lives as long as a test and does what its standard input says. One request a line, {@code ID VERB key=value …};
 * each runs in a thread of its own and is answered by one line when it is done, {@code ID ok key=value …} or {@code ID err MESSAGE}.
 * End of input ends the process.
 */
public final class Driver {
    private final PrintStream out;
    private final ExecutorService threads = Executors.newCachedThreadPool(work -> {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        return thread;
    });
    private final Map<String, Ledger> ledgers = new ConcurrentHashMap<>();
    private final Map<String, Producing> producing = new ConcurrentHashMap<>();

    private Driver(PrintStream out) {
        this.out = out;
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // what a library prints must not look like an answer
        Driver driver = new Driver(new PrintStream(out, true, StandardCharsets.UTF_8));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            driver.accept(line);
        }
        System.exit(0);
    }

    private void accept(String line) {
        String[] words = line.split(" ", 3);
        String id = words[0];
        String verb = words[1];
        String rest = words.length > 2 ? words[2] : "";
        Runnable work;
        try {
            Args args = new Args(rest);
            work = verb.equals("produce") ? produce(id, args) : () -> answer(id, () -> run(verb, args));
        } catch (RuntimeException e) {
            work = () -> answer(id, () -> {
                throw e;
            });
        }
        threads.execute(work);
    }

    /** Registered before the next request is read, so that a stop or an await that follows finds it. */
    private Runnable produce(String id, Args args) {
        Producing run = new Producing(args.text("bootstrap"), ledger(args.text("topic")), args);
        args.done();
        producing.put(id, run);
        return () -> answer(id, run::run);
    }

    private interface Work {
        String run() throws Exception;
    }

    private void answer(String id, Work work) {
        String line;
        try {
            line = id + " ok " + work.run();
        } catch (Throwable e) {
            e.printStackTrace();
            Throwable cause = e instanceof java.util.concurrent.ExecutionException && e.getCause() != null ? e.getCause() : e;
            line = id + " err " + (cause.getClass().getSimpleName() + ": " + cause.getMessage()).replaceAll("\\s+", " ");
        }
        out.println(line);
    }

    private String run(String verb, Args args) throws Exception {
        return switch (verb) {
            case "ping" -> "";
            case "format" -> format(args);
            case "create" -> create(args);
            case "alter" -> alter(args);
            case "delete" -> delete(args);
            case "trim" -> trim(args);
            case "commit" -> commit(args);
            case "logdirs" -> logDirs(args);
            case "replicas" -> replicas(args);
            case "reassign" -> reassign(args);
            case "lead" -> lead(args);
            case "consume" -> {
                Consuming consuming = consuming(args);
                args.done();
                yield consuming.all();
            }
            case "random" -> some(args, false);
            case "times" -> some(args, true);
            case "await" -> {
                Producing run = run(args);
                long acked = args.number("acked");
                args.done();
                yield run.await(acked);
            }
            case "stop" -> {
                Producing run = run(args);
                args.done();
                run.stop();
                yield "";
            }
            default -> throw new IllegalArgumentException("unknown request: " + verb);
        };
    }

    /** A topic is compared with its own ledger; ledger= names another one, to see the comparison fail. */
    private Consuming consuming(Args args) {
        String topic = args.text("topic");
        return new Consuming(args.text("bootstrap"), topic, ledger(args.text("ledger", topic)), args);
    }

    private String some(Args args, boolean byTimestamp) {
        Consuming consuming = consuming(args);
        long count = args.number("count");
        long seed = args.number("seed");
        args.done();
        return consuming.some(count, seed, byTimestamp);
    }

    private String create(Args args) throws Exception {
        String topic = args.text("topic");
        int partitions = (int) args.number("partitions", 1);
        Ledger ledger = new Ledger(topic, partitions, (int) args.number("min", 512), (int) args.number("max", 1536),
                args.text("payload", "random").equals("text"), args.number("first", System.currentTimeMillis() - 3_600_000), args.number("seed", 1));
        int replication = (int) args.number("replication", 1);
        Map<String, String> configs = args.under("config.");
        try (Cluster cluster = new Cluster(args.text("bootstrap"))) {
            args.done();
            cluster.create(topic, partitions, replication, configs);
        }
        ledgers.put(topic, ledger);
        return "";
    }

    private static String alter(Args args) throws Exception {
        String topic = args.text("topic");
        Map<String, String> configs = args.under("config.");
        try (Cluster cluster = new Cluster(args.text("bootstrap"))) {
            args.done();
            cluster.alter(topic, configs);
        }
        return "";
    }

    private String delete(Args args) throws Exception {
        String topic = args.text("topic");
        try (Cluster cluster = new Cluster(args.text("bootstrap"))) {
            args.done();
            cluster.delete(topic);
        }
        ledgers.remove(topic);
        return "";
    }

    private String trim(Args args) throws Exception {
        String topic = args.text("topic");
        long offset = args.number("offset");
        int partitions = ledger(topic).partitions();
        try (Cluster cluster = new Cluster(args.text("bootstrap"))) {
            args.done();
            cluster.trim(topic, partitions, offset);
        }
        return "";
    }

    private static String commit(Args args) throws Exception {
        String topic = args.text("topic");
        String group = args.text("group");
        long offset = args.number("offset");
        try (Cluster cluster = new Cluster(args.text("bootstrap"))) {
            args.done();
            cluster.commit(group, topic, offset);
        }
        return "";
    }

    private String logDirs(Args args) throws Exception {
        try (Cluster cluster = new Cluster(args.text("bootstrap"))) {
            args.done();
            return cluster.logDirs();
        }
    }

    private static String replicas(Args args) throws Exception {
        try (Cluster cluster = new Cluster(args.text("bootstrap"))) {
            args.done();
            return cluster.replicas();
        }
    }

    private static String reassign(Args args) throws Exception {
        String topic = args.text("topic");
        List<Integer> brokers = Arrays.stream(args.text("brokers").split(",")).map(Integer::valueOf).toList();
        try (Cluster cluster = new Cluster(args.text("bootstrap"))) {
            args.done();
            cluster.reassign(topic, brokers);
        }
        return "";
    }

    private static String lead(Args args) throws Exception {
        String topic = args.text("topic");
        int broker = (int) args.number("broker");
        try (Cluster cluster = new Cluster(args.text("bootstrap"))) {
            args.done();
            cluster.lead(topic, broker);
        }
        return "";
    }

    private static String format(Args args) {
        String config = args.text("config");
        String cluster = args.text("cluster");
        args.done();
        Cluster.format(config, cluster);
        return "";
    }

    private Ledger ledger(String topic) {
        Ledger ledger = ledgers.get(topic);
        if (ledger == null) {
            throw new IllegalArgumentException("topic " + topic + " was not created here");
        }
        return ledger;
    }

    private Producing run(Args args) {
        Producing run = producing.get(args.text("id"));
        if (run == null) {
            throw new IllegalArgumentException("no producer run " + args.text("id"));
        }
        return run;
    }
}
