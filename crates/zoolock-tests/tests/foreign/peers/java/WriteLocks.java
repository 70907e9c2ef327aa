import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.recipes.lock.LockListener;
import org.apache.zookeeper.recipes.lock.WriteLock;

/** ZooKeeper's own lock recipe, by several sessions in turn. */
public class WriteLocks {
    static final int SESSIONS = 4;
    static final int ROUNDS = 10;

    public static void main(String[] args) throws Exception {
        AtomicInteger inside = new AtomicInteger();
        AtomicInteger visits = new AtomicInteger();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < SESSIONS; i++) {
            Thread thread = new Thread(() -> {
                try {
                    rounds(args[0], inside, visits);
                } catch (Throwable failure) {
                    // The others would wait for what this one has.
                    failure.printStackTrace();
                    Runtime.getRuntime().halt(1);
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        if (visits.get() != SESSIONS * ROUNDS) {
            System.out.println(visits + " visits");
            System.exit(1);
        }
        System.out.println("ok");
        System.exit(0);
    }

    static void rounds(String address, AtomicInteger inside, AtomicInteger visits) throws Exception {
        CountDownLatch connected = new CountDownLatch(1);
        ZooKeeper client = new ZooKeeper(address, 10_000, event -> connected.countDown());
        connected.await();
        try {
            client.create("/write-lock", new byte[0], ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        } catch (org.apache.zookeeper.KeeperException.NodeExistsException another) {
            // Came first.
        }
        for (int round = 0; round < ROUNDS; round++) {
            CountDownLatch acquired = new CountDownLatch(1);
            WriteLock lock = new WriteLock(client, "/write-lock", null, new LockListener() {
                public void lockAcquired() {
                    acquired.countDown();
                }

                public void lockReleased() {}
            });
            lock.lock();
            // The recipe loses a wake-up when the one before it goes while it is about to be watched ("could not find the
            // stats for less than me"): whoever uses it has to look again.
            for (int looks = 0; !acquired.await(20, TimeUnit.MILLISECONDS); looks++) {
                if (looks == 3000) {
                    throw new IllegalStateException("not acquired within a minute");
                }
                lock.lock();
            }
            if (inside.incrementAndGet() != 1) {
                throw new IllegalStateException("two inside");
            }
            visits.incrementAndGet();
            Thread.sleep(2);
            inside.decrementAndGet();
            // A watch of an earlier look that fires later would queue it again.
            synchronized (lock) {
                lock.unlock();
                lock.close();
            }
        }
        client.close();
    }
}
