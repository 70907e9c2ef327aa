import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.RetryOneTime;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.Stat;
import org.apache.zookeeper.recipes.lock.LockListener;
import org.apache.zookeeper.recipes.lock.WriteLock;

/**
 * Contends for one lock by Curator's recipes and by ZooKeeper's own.
 *
 * Peer CONNECT KIND LOCK REFEREE SECTIONS CONTENDERS: what it is told and what it says is in peer.rs.
 */
public class Peer {
    static final int INSIDE_MS = 1;
    /** Every so many sections holders of permits wait for each other, for no longer than this. */
    static final int TOGETHER = 10;
    static final int PATIENCE_MS = 300;
    /** How often they look whether all are there. */
    static final int LOOK_MS = 5;

    static String connect;
    static String refereePath;
    static int sessionMs = 10_000;
    /** None: until it is told to stop. */
    static int sections;
    static volatile boolean stopped;
    static CountDownLatch ready;
    static final CountDownLatch go = new CountDownLatch(1);

    public static void main(String[] args) throws Exception {
        connect = args[0];
        refereePath = args[3];
        new Thread(Peer::obey).start();
        if (args[4].equals("hold")) {
            sessionMs = 4_000;
            for (String kind : args[1].split(",")) {
                hold(kind, args[2].replace("*", kind));
            }
            return;
        }
        sections = Integer.parseInt(args[4]);
        ready = new CountDownLatch(Integer.parseInt(args[5]));
        List<Contender> contenders = new ArrayList<>();
        for (long i = ready.getCount(); i > 0; i--) {
            Contender contender = new Contender(args[1].split(":"), args[2]);
            contenders.add(contender);
            contender.start();
        }
        ready.await();
        say("ready");
        for (Contender contender : contenders) {
            contender.join();
        }
        say(report(contenders));
        Runtime.getRuntime().halt(0);
    }

    /** Takes every lock below a directory, and keeps it. */
    static void hold(String kind, String directory) throws Exception {
        Session session = Session.open(kind);
        for (String name : session.client().getChildren(directory, false)) {
            String path = directory + "/" + name;
            Handle handle = session.handle(kind.split(":"), path);
            new Thread(() -> {
                try {
                    handle.acquire();
                    say("in " + path);
                } catch (Throwable failure) {
                    fail(failure);
                }
            }).start();
        }
    }

    static void fail(Throwable failure) {
        failure.printStackTrace();
        System.err.flush();
        Runtime.getRuntime().halt(2);
    }

    static void obey() {
        try {
            BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
            for (String order = orders.readLine(); order != null; order = orders.readLine()) {
                stopped |= order.equals("stop");
                go.countDown();
            }
        } catch (Exception broken) {
            // As its end.
        }
        Runtime.getRuntime().halt(3);
    }

    static synchronized void say(String what) {
        System.out.println(what);
        System.out.flush();
    }

    static String report(List<Contender> contenders) {
        List<Long> waits = new ArrayList<>();
        List<String> each = new ArrayList<>();
        for (Contender contender : contenders) {
            waits.addAll(contender.waits);
            each.add("{\"asked\":" + contender.asked + ",\"entered\":" + contender.entered + "}");
        }
        waits.sort(null);
        double longest = waits.isEmpty() ? 0 : waits.get(waits.size() - 1) / 1e6;
        double median = waits.isEmpty() ? 0 : waits.get(waits.size() / 2) / 1e6;
        return "{\"sections\":" + waits.size() + ",\"longest_ms\":" + longest + ",\"median_ms\":" + median
            + ",\"contenders\":" + each + "}";
    }

    /** One session, one handle of the lock. */
    static class Contender extends Thread {
        /** By the service's transactions: when it asked for the lock, when it was inside. */
        final List<Long> asked = new ArrayList<>();
        final List<Long> entered = new ArrayList<>();
        final List<Long> waits = new ArrayList<>();
        final String[] kind;
        final String lockPath;

        Contender(String[] kind, String lockPath) {
            this.kind = kind;
            this.lockPath = lockPath;
        }

        public void run() {
            try (Session session = Session.open(kind[0])) {
                Handle handle = session.handle(kind, lockPath);
                Referee referee = new Referee(session.client(), kind, lockPath);
                // What is slow the first time is over before the others wait for it.
                section(handle, referee, false);
                asked.clear();
                entered.clear();
                waits.clear();
                ready.countDown();
                go.await();
                for (int done = 0; sections == 0 ? !stopped : done < sections; done++) {
                    section(handle, referee, done % TOGETHER == 0);
                }
            } catch (Violation violation) {
                say("violation: " + violation.getMessage());
                Runtime.getRuntime().halt(1);
            } catch (Throwable failure) {
                fail(failure);
            }
        }

        void section(Handle handle, Referee referee, boolean together) throws Exception {
            asked.add(referee.now());
            long began = System.nanoTime();
            handle.acquire();
            waits.add(System.nanoTime() - began);
            entered.add(referee.inside(began, together));
            handle.release();
        }
    }

    interface Session extends AutoCloseable {
        static Session open(String kind) throws Exception {
            return kind.equals("write-lock") ? new Plain() : new Curator();
        }

        Handle handle(String[] kind, String path);

        ZooKeeper client() throws Exception;
    }

    interface Handle {
        void acquire() throws Exception;

        void release() throws Exception;
    }

    static class Curator implements Session {
        // A tracker's watch would be counted among those of waiters.
        final CuratorFramework client = CuratorFrameworkFactory.builder().connectString(connect)
            .sessionTimeoutMs(sessionMs).connectionTimeoutMs(sessionMs).retryPolicy(new RetryOneTime(100))
            .ensembleTracker(false).build();

        Curator() throws Exception {
            client.start();
            if (!client.blockUntilConnected(60, TimeUnit.SECONDS)) {
                throw new IllegalStateException("not connected within a minute");
            }
        }

        public Handle handle(String[] kind, String path) {
            switch (kind[0]) {
                case "curator-mutex": return new One(new InterProcessMutex(client, path));
                case "curator-read": return new One(new InterProcessReadWriteLock(client, path).readLock());
                case "curator-write": return new One(new InterProcessReadWriteLock(client, path).writeLock());
                case "curator-downgrade-read": return new Downgraded(new InterProcessReadWriteLock(client, path));
                case "curator-semaphore": return new Some(client, path, number(kind, 1), number(kind, 2));
                default: throw new IllegalArgumentException(kind[0]);
            }
        }

        public ZooKeeper client() throws Exception {
            return client.getZookeeperClient().getZooKeeper();
        }

        public void close() {
            client.close();
        }
    }

    static class One implements Handle {
        final InterProcessLock lock;

        One(InterProcessLock lock) {
            this.lock = lock;
        }

        public void acquire() throws Exception {
            lock.acquire();
        }

        public void release() throws Exception {
            lock.release();
        }
    }

    /** Reads on after it has written. */
    static class Downgraded implements Handle {
        final InterProcessReadWriteLock lock;

        Downgraded(InterProcessReadWriteLock lock) {
            this.lock = lock;
        }

        public void acquire() throws Exception {
            lock.writeLock().acquire();
            lock.readLock().acquire();
            lock.writeLock().release();
        }

        public void release() throws Exception {
            lock.readLock().release();
        }
    }

    static class Some implements Handle {
        final InterProcessSemaphoreV2 semaphore;
        final int take;
        Collection<Lease> leases;

        Some(CuratorFramework client, String path, int size, int take) {
            semaphore = new InterProcessSemaphoreV2(client, path, size);
            this.take = take;
        }

        public void acquire() throws Exception {
            leases = semaphore.acquire(take);
        }

        public void release() {
            semaphore.returnAll(leases);
        }
    }

    /** ZooKeeper's own client. */
    static class Plain implements Session {
        final ZooKeeper client;

        Plain() throws Exception {
            CountDownLatch connected = new CountDownLatch(1);
            client = new ZooKeeper(connect, sessionMs, event -> connected.countDown());
            connected.await();
        }

        public Handle handle(String[] kind, String path) {
            return new Recipe(client, path);
        }

        public ZooKeeper client() {
            return client;
        }

        public void close() throws Exception {
            client.close();
        }
    }

    static class Recipe implements Handle {
        final ZooKeeper client;
        final String path;
        WriteLock lock;

        Recipe(ZooKeeper client, String path) {
            this.client = client;
            this.path = path;
        }

        public void acquire() throws Exception {
            CountDownLatch acquired = new CountDownLatch(1);
            lock = new WriteLock(client, path, null, new LockListener() {
                public void lockAcquired() {
                    acquired.countDown();
                }

                public void lockReleased() {}
            });
            // Where the one before it goes between its listing and its watch, it waits for ever: it has to look again.
            do {
                lock.lock();
            } while (!acquired.await(20, TimeUnit.MILLISECONDS));
        }

        public void release() {
            // A watch that fires later would queue it again, so it is closed in the same breath; closing alone deletes
            // nothing.
            synchronized (lock) {
                lock.unlock();
                lock.close();
            }
        }
    }

    /** Somebody was inside who may not have been. */
    static class Violation extends Exception {
        Violation(String message) {
            super(message);
        }
    }

    /** Nodes beside the lock, from which everybody sees who else is inside. */
    static class Referee {
        final ZooKeeper client;
        final String[] kind;
        final String lockPath;
        final String who;

        Referee(ZooKeeper client, String[] kind, String lockPath) {
            this.client = client;
            this.kind = kind;
            this.lockPath = lockPath;
            who = String.join(":", kind) + " of process " + ProcessHandle.current().pid();
        }

        /** The last transaction here. */
        long now() throws Exception {
            return client.exists(refereePath, false).getPzxid();
        }

        /** Is inside for a moment, and says since which transaction. */
        long inside(long began, boolean together) throws Exception {
            if (kind[0].endsWith("-semaphore")) {
                return withPermits(number(kind, 2), began, together);
            }
            return kind[0].endsWith("-read") ? reading() : alone();
        }

        long alone() throws Exception {
            long entered;
            try {
                entered = create("/inside");
            } catch (KeeperException.NodeExistsException another) {
                throw violation("somebody else is alone inside: " + data("/inside"));
            }
            expectNone("reader-");
            Thread.sleep(INSIDE_MS);
            delete("/inside");
            // The lock is still ours.
            expectNone("reader-");
            return entered;
        }

        long reading() throws Exception {
            String node = "/reader-" + UUID.randomUUID();
            long entered = create(node);
            expectNone("inside");
            Thread.sleep(INSIDE_MS);
            expectNone("inside");
            delete(node);
            return entered;
        }

        long withPermits(int take, long began, boolean together) throws Exception {
            List<String> nodes = new ArrayList<>();
            long entered = 0;
            for (int i = 0; i < take; i++) {
                nodes.add("/permit-" + UUID.randomUUID());
                entered = create(nodes.get(i));
            }
            long came = System.nanoTime();
            while (!allAreTaken() && together && millisSince(came) < PATIENCE_MS) {
                Thread.sleep(LOOK_MS);
            }
            // As long again as it took to come in: whoever is one too many has the time to.
            Thread.sleep(together ? Math.min(millisSince(began), PATIENCE_MS) : INSIDE_MS);
            allAreTaken();
            for (String node : nodes) {
                delete(node);
            }
            return entered;
        }

        /** Whether all permits are taken. How many there are is what the referee says, whatever the lock thinks. */
        boolean allAreTaken() throws Exception {
            int permits = Integer.parseInt(data(""));
            int taken = found("permit-").size();
            if (taken > permits) {
                throw violation(taken + " permits of " + permits + " are taken");
            }
            return taken == permits;
        }

        long create(String node) throws Exception {
            Stat stat = new Stat();
            byte[] data = who.getBytes(StandardCharsets.UTF_8);
            client.create(refereePath + node, data, ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL, stat);
            return stat.getCzxid();
        }

        void delete(String node) throws Exception {
            client.delete(refereePath + node, -1);
        }

        List<String> found(String prefix) throws Exception {
            return client.getChildren(refereePath, false).stream()
                .filter(name -> name.startsWith(prefix)).collect(Collectors.toList());
        }

        void expectNone(String prefix) throws Exception {
            List<String> found = found(prefix);
            if (!found.isEmpty()) {
                throw violation("beside us is " + found.get(0) + ": " + data("/" + found.get(0)));
            }
        }

        String data(String node) {
            try {
                return new String(client.getData(refereePath + node, false, null), StandardCharsets.UTF_8);
            } catch (Exception gone) {
                return "gone by now";
            }
        }

        Violation violation(String what) throws Exception {
            List<String> queue = new ArrayList<>(client.getChildren(lockPath, false));
            queue.sort(null);
            return new Violation(who + ": " + what + "; at the lock are " + queue);
        }
    }

    static long millisSince(long moment) {
        return (System.nanoTime() - moment) / 1_000_000;
    }

    static int number(String[] kind, int part) {
        return Integer.parseInt(kind[part]);
    }
}
