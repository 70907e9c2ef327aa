import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.retry.RetryOneTime;

/** Takes Curator's locks as it is told, a line each, in a session of their own each. */
public class Curators {
    static String connect;

    interface Deed {
        void on(CuratorFramework client) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        connect = args[0];
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            String[] words = order.split(" ");
            String path = words[1];
            switch (words[0]) {
                case "mutex": start(client -> mutex(client, path)); break;
                case "write-and-read": start(client -> writeAndRead(client, path)); break;
                case "permit": start(client -> permit(client, path, Integer.parseInt(words[2]))); break;
                case "revoke": start(client -> revoke(client, path)); break;
                default: throw new IllegalArgumentException(order);
            }
        }
        Runtime.getRuntime().halt(0);
    }

    static void start(Deed deed) {
        CuratorFramework client = CuratorFrameworkFactory.newClient(connect, 10_000, 10_000, new RetryOneTime(100));
        new Thread(() -> {
            try {
                client.start();
                if (!client.blockUntilConnected(60, TimeUnit.SECONDS)) {
                    throw new IllegalStateException("not connected within a minute");
                }
                deed.on(client);
            } catch (Throwable failure) {
                failure.printStackTrace();
                Runtime.getRuntime().halt(1);
            }
        }).start();
    }

    /** Until it is asked to let go. */
    static void mutex(CuratorFramework client, String path) throws Exception {
        InterProcessMutex mutex = new InterProcessMutex(client, path);
        CountDownLatch asked = new CountDownLatch(1);
        mutex.makeRevocable(lock -> asked.countDown());
        mutex.acquire();
        say("holds " + path);
        asked.await();
        say("is asked for " + path);
        mutex.release();
        say("let go of " + path);
    }

    static void writeAndRead(CuratorFramework client, String path) throws Exception {
        InterProcessReadWriteLock lock = new InterProcessReadWriteLock(client, path);
        lock.writeLock().acquire();
        lock.readLock().acquire();
        say("holds " + path);
        forEver();
    }

    static void permit(CuratorFramework client, String path, int permits) throws Exception {
        new InterProcessSemaphoreV2(client, path, permits).acquire();
        say("holds " + path);
        forEver();
    }

    static void revoke(CuratorFramework client, String path) throws Exception {
        Revoker.attemptRevoke(client, path);
        say("asked " + path);
    }

    static void forEver() throws InterruptedException {
        new CountDownLatch(1).await();
    }

    static synchronized void say(String what) {
        System.out.println(what);
        System.out.flush();
    }
}
