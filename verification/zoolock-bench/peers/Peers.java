import java.lang.management.ManagementFactory;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.StringJoiner;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.Stat;
import org.apache.zookeeper.recipes.lock.LockListener;
import org.apache.zookeeper.recipes.lock.WriteLock;

/**
 * A worker with the locks of Curator and of ZooKeeper's WriteLock. It reads one job per line of standard input, and
 * prints one answer per job. The worker in Rust (`src/worker`) describes the jobs. The process lives for the whole run,
 * so its code is compiled before the measurement.
 */
public class Peers {
    static final int SESSION_TIMEOUT = 30_000;

    /** A session with which locks can be acquired. */
    interface Peer {
        Lock lock(String path) throws Exception;

        void close() throws Exception;
    }

    /** One lock, for one thread. */
    interface Lock {
        void acquire() throws Exception;

        void release() throws Exception;
    }

    interface Opening {
        Peer open(String address) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        Opening opening = args[0].equals("curator") ? Curator::new : Recipe::new;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String answer;
            try {
                answer = work(opening, line);
            } catch (Throwable failure) {
                answer = "failed " + failure.toString().replace('\n', ' ');
            }
            System.out.println(answer);
        }
        System.exit(0);
    }

    static String work(Opening opening, String line) throws Exception {
        String[] words = line.split(" ");
        Map<String, String> fields = new HashMap<>();
        for (String word : words) {
            int at = word.indexOf('=');
            if (at > 0) {
                fields.put(word.substring(0, at), word.substring(at + 1));
            }
        }
        switch (words[0]) {
            case "solo":
                return solo(opening, fields);
            case "visit":
                return visit(opening, fields);
            case "crowd":
                return new Crowd(opening, fields).run();
            default:
                throw new IllegalArgumentException("there is no work " + words[0]);
        }
    }

    static String solo(Opening opening, Map<String, String> fields) throws Exception {
        int count = Integer.parseInt(fields.get("count"));
        prepare(fields.get("connect"), List.of(fields.get("path")));
        Peer peer = opening.open(fields.get("connect"));
        Lock lock = peer.lock(fields.get("path"));
        for (int i = Integer.parseInt(fields.get("warm")); i > 0; i--) {
            lock.acquire();
            lock.release();
        }
        List<Long> samples = new ArrayList<>(count);
        long cpu = cpu();
        long begun = System.nanoTime();
        for (int i = 0; i < count; i++) {
            long before = System.nanoTime();
            lock.acquire();
            lock.release();
            samples.add(System.nanoTime() - before);
        }
        long elapsed = System.nanoTime() - begun;
        String answer = taken(elapsed, cpu() - cpu, 0, samples);
        peer.close();
        return answer;
    }

    static String visit(Opening opening, Map<String, String> fields) throws Exception {
        prepare(fields.get("connect"), List.of(fields.get("path")));
        Peer peer = opening.open(fields.get("connect"));
        Lock lock = peer.lock(fields.get("path"));
        List<Long> samples = new ArrayList<>();
        long cpu = cpu();
        long begun = System.nanoTime();
        while (!new File(fields.get("stop")).exists()) {
            long before = System.nanoTime();
            lock.acquire();
            samples.add(System.nanoTime() - before);
            lock.release();
        }
        String answer = taken(System.nanoTime() - begun, cpu() - cpu, 0, samples);
        peer.close();
        return answer;
    }

    /** Many tasks that want the same lock. All queue behind a holder, the gate, which then releases. */
    static class Crowd {
        final String address;
        final int tasks;
        final int sessions;
        final int turns;
        final int locks;
        final long holdMicros;
        final List<String> paths = new ArrayList<>();
        final List<HoldLog> logs = new ArrayList<>();
        final AtomicReference<Throwable> failure = new AtomicReference<>();
        final String stop;
        final Opening opening;

        Crowd(Opening opening, Map<String, String> fields) {
            this.opening = opening;
            address = fields.get("connect");
            tasks = Integer.parseInt(fields.get("tasks"));
            sessions = Integer.parseInt(fields.get("sessions"));
            turns = Integer.parseInt(fields.get("turns"));
            locks = Integer.parseInt(fields.get("locks"));
            holdMicros = Long.parseLong(fields.get("hold_us"));
            stop = fields.get("stop");
            for (int i = 0; i < locks; i++) {
                paths.add(fields.get("path") + "-" + i);
                logs.add(new HoldLog());
            }
        }

        String run() throws Exception {
            prepare(address, paths);
            List<Peer> peers = new ArrayList<>();
            for (int i = 0; i < sessions; i++) {
                peers.add(opening.open(address));
            }
            // The gates have a session of their own: WriteLock mistakes any znode of its session for its own.
            Peer keeper = opening.open(address);
            List<Lock> gates = new ArrayList<>();
            for (String path : paths) {
                Lock gate = keeper.lock(path);
                gate.acquire();
                gates.add(gate);
            }
            long cpu = cpu();
            long begun = System.nanoTime();
            CountDownLatch ended = new CountDownLatch(tasks);
            for (int task = 0; task < tasks; task++) {
                int at = task % locks;
                Lock lock = peers.get(task / locks % sessions).lock(paths.get(at));
                Thread thread = new Thread(() -> member(lock, logs.get(at), ended));
                thread.setDaemon(true);
                thread.start();
            }
            try (ZooKeeper observer = connect(address)) {
                for (String path : paths) {
                    while (true) {
                        fail();
                        Stat stat = observer.exists(path, false);
                        if (stat != null && stat.getNumChildren() >= tasks / locks + 1) {
                            break;
                        }
                        Thread.sleep(20);
                    }
                }
            }
            long joined = System.nanoTime() - begun;
            long opened = System.nanoTime();
            for (int i = 0; i < locks; i++) {
                logs.get(i).leave();
                gates.get(i).release();
            }
            ended.await();
            fail();
            long elapsed = System.nanoTime() - opened;
            if (stop != null) {
                // Ends the second process, which would otherwise continue alone.
                new File(stop).createNewFile();
            }
            List<Long> samples = new ArrayList<>();
            for (HoldLog log : logs) {
                samples.addAll(log.handOvers());
            }
            String answer = taken(elapsed, cpu() - cpu, joined, samples);
            keeper.close();
            for (Peer peer : peers) {
                peer.close();
            }
            return answer;
        }

        void member(Lock lock, HoldLog log, CountDownLatch ended) {
            try {
                for (int i = 0; i < turns; i++) {
                    lock.acquire();
                    log.enter();
                    if (holdMicros > 0) {
                        Thread.sleep(holdMicros / 1000, (int) (holdMicros % 1000) * 1000);
                    }
                    log.leave();
                    lock.release();
                }
                ended.countDown();
            } catch (Throwable thrown) {
                failure.compareAndSet(null, thrown);
                // The other tasks are not awaited.
                for (long i = ended.getCount(); i > 0; i--) {
                    ended.countDown();
                }
            }
        }

        void fail() throws Exception {
            if (failure.get() != null) {
                throw new Exception(failure.get());
            }
        }
    }

    /** The log of all entries and exits. */
    static class HoldLog {
        final List<Boolean> in = new ArrayList<>();
        final List<Long> when = new ArrayList<>();

        synchronized void enter() {
            in.add(true);
            when.add(System.nanoTime());
        }

        synchronized void leave() {
            in.add(false);
            when.add(System.nanoTime());
        }

        synchronized List<Long> handOvers() {
            List<Long> samples = new ArrayList<>();
            for (int i = 1; i < in.size(); i++) {
                if (in.get(i).equals(in.get(i - 1))) {
                    throw new IllegalStateException("two tasks held the lock at once");
                }
                if (in.get(i)) {
                    samples.add(when.get(i) - when.get(i - 1));
                }
            }
            return samples;
        }
    }

    static class Curator implements Peer {
        final CuratorFramework client;

        Curator(String address) throws Exception {
            client = CuratorFrameworkFactory.newClient(address, SESSION_TIMEOUT, SESSION_TIMEOUT, new RetryOneTime(100));
            client.start();
            client.blockUntilConnected();
        }

        public Lock lock(String path) {
            InterProcessMutex mutex = new InterProcessMutex(client, path);
            return new Lock() {
                public void acquire() throws Exception {
                    mutex.acquire();
                }

                public void release() throws Exception {
                    mutex.release();
                }
            };
        }

        public void close() {
            client.close();
        }
    }

    /** ZooKeeper's WriteLock. */
    static class Recipe implements Peer {
        final ZooKeeper client;

        Recipe(String address) throws Exception {
            client = connect(address);
        }

        public Lock lock(String path) {
            AtomicReference<CountDownLatch> acquired = new AtomicReference<>();
            WriteLock lock = new WriteLock(client, path, null, new LockListener() {
                public void lockAcquired() {
                    acquired.get().countDown();
                }

                public void lockReleased() {}
            });
            return new Lock() {
                public void acquire() throws Exception {
                    CountDownLatch latch = new CountDownLatch(1);
                    acquired.set(latch);
                    lock.lock();
                    latch.await();
                }

                public void release() {
                    lock.unlock();
                }
            };
        }

        public void close() throws Exception {
            client.close();
        }
    }

    static ZooKeeper connect(String address) throws Exception {
        CountDownLatch connected = new CountDownLatch(1);
        ZooKeeper client = new ZooKeeper(address, SESSION_TIMEOUT, event -> {
            if (event.getState() == Watcher.Event.KeeperState.SyncConnected) {
                connected.countDown();
            }
        });
        connected.await();
        return client;
    }

    /** Creates the directories of the locks. */
    static void prepare(String address, List<String> paths) throws Exception {
        try (ZooKeeper client = connect(address)) {
            for (String path : paths) {
                for (int at = path.indexOf('/', 1); at > 0; at = path.indexOf('/', at + 1)) {
                    make(client, path.substring(0, at));
                }
                make(client, path);
            }
        }
    }

    static void make(ZooKeeper client, String path) throws Exception {
        try {
            client.create(path, new byte[0], ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        } catch (KeeperException.NodeExistsException another) {
            // Another client has created it.
        }
    }

    static String taken(long elapsed, long cpu, long joined, List<Long> samples) {
        StringJoiner list = new StringJoiner(",");
        for (Long sample : samples) {
            list.add(sample.toString());
        }
        return "ok elapsed_ns=" + elapsed + " cpu_ns=" + cpu + " joined_ns=" + joined + " turns=" + samples.size()
            + " samples=" + list;
    }

    /** Returns the processor time of this process, including that of the compiler and the garbage collector. */
    static long cpu() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
            .getProcessCpuTime();
    }
}
