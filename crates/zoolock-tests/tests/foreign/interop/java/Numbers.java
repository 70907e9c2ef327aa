import java.io.File;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.server.persistence.FileTxnLog;
import org.apache.zookeeper.txn.CreateTxn;
import org.apache.zookeeper.txn.TxnHeader;

/**
 * Brings a directory of a server that is down near the end of its numbers: Numbers DATA-DIR PATH COUNT.
 *
 * A create in the server's log says how many children its parent has had; here is one of a child `counted` that says
 * COUNT.
 */
public class Numbers {
    public static void main(String[] args) throws Exception {
        FileTxnLog log = new FileTxnLog(new File(args[0], "version-2"));
        long zxid = log.getLastLoggedZxid() + 1;
        int count = Integer.parseInt(args[2]);
        CreateTxn create =
            new CreateTxn(args[1] + "/counted", new byte[0], ZooDefs.Ids.OPEN_ACL_UNSAFE, false, count);
        log.append(new TxnHeader(0, 0, zxid, System.currentTimeMillis(), ZooDefs.OpCode.create), create);
        log.commit();
        log.close();
    }
}
