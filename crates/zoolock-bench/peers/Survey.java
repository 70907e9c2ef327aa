import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/** Curator's way to list who stands at all locks: for each line that it reads it looks once, and says how many it found. */
public class Survey {
    public static void main(String[] args) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(args[0], 30_000, 30_000, new RetryOneTime(100));
        client.start();
        client.blockUntilConnected();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        System.out.println("ready");
        while (lines.readLine() != null) {
            List<String> locks = client.getChildren().forPath(args[1]);
            long contenders = 0;
            for (String lock : locks) {
                contenders += new InterProcessMutex(client, args[1] + "/" + lock).getParticipantNodes().size();
            }
            System.out.println(locks.size() + " " + contenders);
        }
        System.exit(0);
    }
}
