import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/** A service that holds a lock until another client asks it to release the lock. */
public class Service {
    public static void main(String[] args) throws Exception {
        String connect = System.getenv("ZOOLOCK_CONNECT");
        try (CuratorFramework client =
                CuratorFrameworkFactory.newClient(connect, new ExponentialBackoffRetry(100, 3))) {
            client.start();
            client.blockUntilConnected(30, TimeUnit.SECONDS);
            InterProcessMutex mutex = new InterProcessMutex(client, args[0]);
            CountDownLatch revoked = new CountDownLatch(1);
            mutex.makeRevocable(lock -> revoked.countDown());
            mutex.acquire();
            System.out.println("the service holds " + args[0]);
            revoked.await();
            mutex.release();
            System.out.println("the service released " + args[0]);
        }
    }
}
