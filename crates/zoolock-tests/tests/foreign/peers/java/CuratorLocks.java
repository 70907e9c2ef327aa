import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.RetryOneTime;

/** Curator's locks, by several clients with several threads each, looking for two where there may be one. */
public class CuratorLocks {
    static final int CLIENTS = 3;
    static final int THREADS = 2;
    static final int ROUNDS = 10;
    static final int PERMITS = 2;

    /** What a thread does again and again. */
    interface Round {
        void run(int number) throws Exception;
    }

    interface Worker {
        Round on(CuratorFramework client) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        List<CuratorFramework> clients = new ArrayList<>();
        for (int i = 0; i < CLIENTS; i++) {
            CuratorFramework client =
                CuratorFrameworkFactory.newClient(args[0], 10_000, 10_000, new RetryOneTime(100));
            client.start();
            clients.add(client);
        }
        mutex(clients);
        readWriteLock(clients);
        semaphore(clients);
        multiLock(clients);
        for (CuratorFramework client : clients) {
            client.close();
        }
        System.out.println("ok");
        System.exit(0);
    }

    static void mutex(List<CuratorFramework> clients) throws Exception {
        Inside inside = new Inside(1);
        all(clients, client -> {
            InterProcessMutex mutex = new InterProcessMutex(client, "/mutex");
            return number -> {
                acquire(mutex);
                // It may be taken again by the thread that has it.
                acquire(mutex);
                inside.visit();
                mutex.release();
                inside.visit();
                mutex.release();
            };
        });
        inside.expect("mutex", 2 * CLIENTS * THREADS * ROUNDS);
    }

    static void readWriteLock(List<CuratorFramework> clients) throws Exception {
        Inside writers = new Inside(1);
        Inside readers = new Inside(CLIENTS * THREADS);
        all(clients, client -> {
            InterProcessReadWriteLock lock = new InterProcessReadWriteLock(client, "/read-write");
            return number -> {
                if (number % 3 == 0) {
                    acquire(lock.writeLock());
                    writers.visit(() -> check(readers.now.get() == 0, "a reader beside a writer"));
                    lock.writeLock().release();
                } else {
                    acquire(lock.readLock());
                    readers.visit(() -> check(writers.now.get() == 0, "a writer beside a reader"));
                    lock.readLock().release();
                }
            };
        });
        check(writers.visits.get() + readers.visits.get() == CLIENTS * THREADS * ROUNDS, "rounds are missing");
        InterProcessReadWriteLock one = new InterProcessReadWriteLock(clients.get(0), "/read-write");
        InterProcessReadWriteLock two = new InterProcessReadWriteLock(clients.get(1), "/read-write");
        InterProcessReadWriteLock three = new InterProcessReadWriteLock(clients.get(2), "/read-write");
        acquire(one.readLock());
        acquire(two.readLock());
        check(!three.writeLock().acquire(50, TimeUnit.MILLISECONDS), "a writer beside readers");
        one.readLock().release();
        two.readLock().release();
    }

    static void semaphore(List<CuratorFramework> clients) throws Exception {
        Inside inside = new Inside(PERMITS);
        all(clients, client -> {
            InterProcessSemaphoreV2 semaphore = new InterProcessSemaphoreV2(client, "/semaphore", PERMITS);
            return number -> {
                Lease lease = semaphore.acquire(60, TimeUnit.SECONDS);
                check(lease != null, "no lease within a minute");
                inside.visit();
                semaphore.returnLease(lease);
            };
        });
        inside.expect("semaphore", CLIENTS * THREADS * ROUNDS);
        InterProcessSemaphoreV2 semaphore = new InterProcessSemaphoreV2(clients.get(0), "/semaphore", PERMITS);
        Collection<Lease> leases = semaphore.acquire(PERMITS, 60, TimeUnit.SECONDS);
        check(leases != null, "no leases within a minute");
        check(semaphore.acquire(50, TimeUnit.MILLISECONDS) == null, "a lease too many");
        semaphore.returnAll(leases);
    }

    static void multiLock(List<CuratorFramework> clients) throws Exception {
        Inside inside = new Inside(1);
        all(clients, client -> {
            InterProcessMultiLock both = new InterProcessMultiLock(client, List.of("/multi/one", "/multi/other"));
            InterProcessMutex other = new InterProcessMutex(client, "/multi/other");
            return number -> {
                InterProcessLock lock = number % 2 == 0 ? both : other;
                acquire(lock);
                inside.visit();
                lock.release();
            };
        });
        inside.expect("multi lock", CLIENTS * THREADS * ROUNDS);
    }

    static void acquire(InterProcessLock lock) throws Exception {
        check(lock.acquire(60, TimeUnit.SECONDS), "not acquired within a minute");
    }

    /** Every client with all of its threads at once. */
    static void all(List<CuratorFramework> clients, Worker worker) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(CLIENTS * THREADS);
        List<Future<Void>> ends = new ArrayList<>();
        for (CuratorFramework client : clients) {
            for (int i = 0; i < THREADS; i++) {
                Callable<Void> rounds = () -> {
                    try {
                        Round round = worker.on(client);
                        for (int number = 0; number < ROUNDS; number++) {
                            round.run(number);
                        }
                    } catch (Throwable failure) {
                        // The others would wait for what this one has.
                        failure.printStackTrace();
                        Runtime.getRuntime().halt(1);
                    }
                    return null;
                };
                ends.add(threads.submit(rounds));
            }
        }
        for (Future<Void> end : ends) {
            end.get();
        }
        threads.shutdown();
    }

    static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new IllegalStateException(otherwise);
        }
    }

    /** Counts who is inside. */
    static class Inside {
        final AtomicInteger now = new AtomicInteger();
        final AtomicInteger visits = new AtomicInteger();
        final int allowed;

        Inside(int allowed) {
            this.allowed = allowed;
        }

        void visit() throws InterruptedException {
            visit(() -> {});
        }

        void visit(Runnable look) throws InterruptedException {
            int together = now.incrementAndGet();
            visits.incrementAndGet();
            check(together <= allowed, together + " inside where " + allowed + " may be");
            look.run();
            // Long enough for others to be let in by mistake.
            Thread.sleep(2);
            look.run();
            now.decrementAndGet();
        }

        void expect(String what, int count) {
            check(visits.get() == count, what + ": " + visits.get() + " visits instead of " + count);
        }
    }
}
