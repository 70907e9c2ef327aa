import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.retry.RetryOneTime;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.recipes.lock.LockListener;
import org.apache.zookeeper.recipes.lock.WriteLock;

/**
 * Executes commands with the locks of Curator and with ZooKeeper's WriteLock: LockClient CONNECT.
 *
 * The file ../mod.rs describes the commands and the answers.
 */
public class LockClient {
    static final int SESSION_MS = 10_000;

    static String connect;

    public static void main(String[] args) throws Exception {
        connect = args[0];
        Map<String, Worker> workers = new HashMap<>();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ", 2);
            workers.computeIfAbsent(words[0], Worker::started).commands.add(words[1]);
        }
        Runtime.getRuntime().halt(0);
    }

    /** A session with one lock. All commands run on one thread, because a lock of Curator belongs to a thread. */
    static class Worker extends Thread {
        final String id;
        final BlockingQueue<String> commands = new LinkedBlockingQueue<>();
        CuratorFramework client;
        Lock lock;

        Worker(String id) {
            this.id = id;
        }

        static Worker started(String id) {
            Worker worker = new Worker(id);
            worker.start();
            return worker;
        }

        public void run() {
            try {
                open();
                while (execute(commands.take().split(" "))) {}
            } catch (Throwable failure) {
                failure.printStackTrace();
                System.err.flush();
                Runtime.getRuntime().halt(1);
            }
        }

        void open() throws Exception {
            // The tests count watches, and an ensemble tracker would set a watch.
            client = CuratorFrameworkFactory.builder().connectString(connect).sessionTimeoutMs(SESSION_MS)
                .connectionTimeoutMs(SESSION_MS).retryPolicy(new RetryOneTime(100)).ensembleTracker(false).build();
            client.start();
            if (!client.blockUntilConnected(60, TimeUnit.SECONDS)) {
                throw new IllegalStateException("not connected within a minute");
            }
        }

        /** Returns whether further commands can follow. */
        boolean execute(String[] words) throws Exception {
            switch (words[0]) {
                case "acquire":
                    if (lock == null) {
                        lock = lock(words[1].split(":"), words[2]);
                    }
                    lock.acquire();
                    answer("acquired");
                    return true;
                case "release":
                    lock.release();
                    answer("released");
                    return true;
                case "revoke":
                    Revoker.attemptRevoke(client, words[1]);
                    answer("revoked");
                    return true;
                case "close":
                    client.close();
                    answer("closed");
                    return false;
                default:
                    throw new IllegalArgumentException(words[0]);
            }
        }

        void answer(String answer) {
            synchronized (System.out) {
                System.out.println(id + " " + answer);
                System.out.flush();
            }
        }

        Lock lock(String[] kind, String path) throws Exception {
            switch (kind[0]) {
                case "curator-mutex": return new Single(new InterProcessMutex(client, path));
                case "curator-revocable-mutex":
                    InterProcessMutex mutex = new InterProcessMutex(client, path);
                    mutex.makeRevocable(revoked -> answer("asked"));
                    return new Single(mutex);
                case "curator-multi":
                    return new Single(new InterProcessMultiLock(client, List.of(path + "-first", path)));
                case "curator-read": return new Single(new InterProcessReadWriteLock(client, path).readLock());
                case "curator-write": return new Single(new InterProcessReadWriteLock(client, path).writeLock());
                case "curator-write-and-read": return new WriteAndRead(client, path, false);
                case "curator-downgrade-read": return new WriteAndRead(client, path, true);
                case "curator-semaphore":
                    return new Permits(client, path, Integer.parseInt(kind[1]), Integer.parseInt(kind[2]));
                case "curator-selector": return new Selector(client, path);
                case "curator-latch": return new Latch(client, path);
                case "write-lock": return new Recipe(client.getZookeeperClient().getZooKeeper(), path);
                default: throw new IllegalArgumentException(kind[0]);
            }
        }
    }

    interface Lock {
        void acquire() throws Exception;

        void release() throws Exception;
    }

    static class Single implements Lock {
        final InterProcessLock lock;

        Single(InterProcessLock lock) {
            this.lock = lock;
        }

        public void acquire() throws Exception {
            lock.acquire();
        }

        public void release() throws Exception {
            lock.release();
        }
    }

    /** A write lock with a read lock of the same thread. With downgrade, it then releases the write lock. */
    static class WriteAndRead implements Lock {
        final InterProcessReadWriteLock lock;
        final boolean downgrade;

        WriteAndRead(CuratorFramework client, String path, boolean downgrade) {
            lock = new InterProcessReadWriteLock(client, path);
            this.downgrade = downgrade;
        }

        public void acquire() throws Exception {
            lock.writeLock().acquire();
            lock.readLock().acquire();
            if (downgrade) {
                lock.writeLock().release();
            }
        }

        public void release() throws Exception {
            lock.readLock().release();
            if (!downgrade) {
                lock.writeLock().release();
            }
        }
    }

    static class Permits implements Lock {
        final InterProcessSemaphoreV2 semaphore;
        final int count;
        Collection<Lease> leases;

        Permits(CuratorFramework client, String path, int size, int count) {
            semaphore = new InterProcessSemaphoreV2(client, path, size);
            this.count = count;
        }

        public void acquire() throws Exception {
            leases = semaphore.acquire(count);
        }

        public void release() {
            semaphore.returnAll(leases);
        }
    }

    /** Curator's election of a leader. The leader is the holder. */
    static class Latch implements Lock {
        final CuratorFramework client;
        final String path;
        LeaderLatch latch;

        Latch(CuratorFramework client, String path) {
            this.client = client;
            this.path = path;
        }

        public void acquire() throws Exception {
            latch = new LeaderLatch(client, path);
            latch.start();
            latch.await();
        }

        public void release() throws Exception {
            latch.close();
        }
    }

    /** Curator's other election, which is a mutex. */
    static class Selector implements Lock {
        final CuratorFramework client;
        final String path;
        CountDownLatch end;
        CountDownLatch ended;

        Selector(CuratorFramework client, String path) {
            this.client = client;
            this.path = path;
        }

        public void acquire() throws Exception {
            CountDownLatch begun = new CountDownLatch(1);
            CountDownLatch ends = end = new CountDownLatch(1);
            CountDownLatch hasEnded = ended = new CountDownLatch(1);
            LeaderSelector selector = new LeaderSelector(client, path, new LeaderSelectorListenerAdapter() {
                public void takeLeadership(CuratorFramework ignored) throws Exception {
                    begun.countDown();
                    ends.await();
                    hasEnded.countDown();
                }
            });
            selector.start();
            begun.await();
        }

        // The selector's thread releases the lock then. Closing the selector could interrupt that.
        public void release() throws Exception {
            end.countDown();
            ended.await();
        }
    }

    /** The lock recipe that comes with ZooKeeper. */
    static class Recipe implements Lock {
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
            // If the predecessor's znode is deleted between the recipe's listing and its watch, the recipe waits forever.
            // So it is made to list again.
            do {
                lock.lock();
            } while (!acquired.await(20, TimeUnit.MILLISECONDS));
        }

        public void release() {
            // A later watch event would make the recipe queue again. So the lock is closed before it handles such an
            // event. Closing alone would not delete the znode.
            synchronized (lock) {
                lock.unlock();
                lock.close();
            }
        }
    }
}
