import java.io.File;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.server.persistence.FileTxnLog;
import org.apache.zookeeper.txn.CreateTxn;
import org.apache.zookeeper.txn.TxnHeader;

/**
 * Sets the next sequence number of a directory, in the log of a server that is down: Numbers DATA-DIR PATH COUNT.
 *
 * A create in the log carries the number of children that the parent has ever had. The program appends a create of a
 * child `counted` with COUNT.
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
